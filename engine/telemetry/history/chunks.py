"""Packs ten seconds of frames into one chunk of the history file, and unpacks it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from slotdeck.engine.telemetry.frame import EngineInfo, Frame
from slotdeck.engine.telemetry.history.schema import ChunkSummary

DIGITS = 5
"""Decimals of every stored number: seconds are exact to a hundredth of a millisecond."""


def summarise(frames: Sequence[Frame]) -> ChunkSummary:
    """The summary of a chunk of at least one frame."""

    def highest(values: Iterator[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    generated = [frame.generated_per_second for frame in frames if frame.generated_per_second is not None]
    fills = (f.pool.live / f.pool.total if f.pool.live is not None and f.pool.total else None for f in frames)
    running, waiting = highest(f.running for f in frames), highest(f.waiting_count for f in frames)
    return ChunkSummary(
        boot_id=frames[0].boot_id,
        first_time=frames[0].time,
        last_time=frames[-1].time,
        frames=len(frames),
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
        live=highest(fills),
        generated=sum(generated) / len(generated) if generated else None,
        ttft_p95=frames[-1].minute.ttft_p95,
        itl_p95=frames[-1].minute.itl_p95,
        os_swap=highest(
            None if (f.host.os_swap_in is None and f.host.os_swap_out is None)
            else (f.host.os_swap_in or 0.0) + (f.host.os_swap_out or 0.0)
            for f in frames
        ),
    )  # fmt: skip


def pack(frames: Sequence[Frame]) -> bytes:
    """Compress frames of one boot. Their :class:`EngineInfo` is left out, since the file holds it once per boot."""
    rows = [_rounded(frame.model_dump(exclude_defaults=True, exclude={"engine"})) for frame in frames]
    return zlib.compress("\n".join(json.dumps(row, separators=(",", ":")) for row in rows).encode())


def unpack(body: bytes, engine: EngineInfo) -> list[Frame]:
    """Decompress the frames of a chunk. Raises ValueError if it is damaged."""
    try:
        lines = zlib.decompress(body).splitlines()
    except zlib.error as error:
        raise ValueError(f"a damaged chunk: {error}") from error
    return [Frame.model_validate(json.loads(line) | {"engine": engine}) for line in lines]


def _rounded(value: Any) -> Any:
    kind = type(value)
    if kind is float:
        return round(value, DIGITS)
    if kind is dict:
        return {name: _rounded(item) for name, item in value.items()}
    if kind in (tuple, list):
        return [_rounded(item) for item in value]
    return value
