"""The result of a bench as a table and as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from slotdeck.console.bench.machine import machine_line
from slotdeck.console.bench.stage import ANSWER_TOKENS, PROMPT_WORDS, Stage
from slotdeck.console.bench.step_profile import profile_table
from slotdeck.console.load.tally import duration
from slotdeck.engine.telemetry.step_profile import Profile


@dataclass
class BenchReport:
    """The result of a bench.

    ``server`` describes what was measured. ``ratio`` is tokens/s on all slots divided by tokens/s on one slot, with the
    same users; ``None`` if that was not measured.
    """

    server: dict[str, Any]
    machine: dict[str, Any]
    requests_per_user: int
    seed: int
    stages: list[Stage]
    ratio: float | None = None
    ratio_users: int | None = None
    profiles: list[tuple[str, Profile]] = field(default_factory=list)
    """With ``--profile``: the heading of each stage on all slots, and where the time of its steps went."""
    flame: str | None = None
    """A flame graph of the stage with the most users, as SVG."""

    def as_json(self) -> dict[str, Any]:
        return {
            "server": self.server,
            "machine": self.machine,
            "prompt_words": PROMPT_WORDS,
            "answer_tokens": ANSWER_TOKENS,
            "requests_per_user": self.requests_per_user,
            "seed": self.seed,
            "stages": [dataclasses.asdict(stage) for stage in self.stages],
            "ratio_all_slots_to_one": self.ratio,
            "ratio_users": self.ratio_users,
            "profiles": {heading: profile.model_dump() for heading, profile in self.profiles},
        }

    def as_text(self) -> str:
        header = ("users", "slots", "tok/s", "TTFT p50", "p95", "ITL p50", "p95", "max", "tokens", "req", "503", "err")
        rows = [header, *(_row(stage) for stage in self.stages)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        facts = ", ".join(f"{name} {value}" for name, value in self.server.items() if value is not None)
        notes = [f"server   {facts}", f"machine  {machine_line(self.machine)}"]
        if any(stage.counted_by == "chunks" for stage in self.stages):
            notes.append("tokens   the server sent no usage, so pieces of text were counted as tokens")
        if self.ratio is not None:
            slots = max(stage.slots or 0 for stage in self.stages)
            notes.append(
                f"batching {slots} slots give {self.ratio_users} users {self.ratio:.2f} times the tok/s of 1 slot"
            )
        profile = ["", profile_table(self.profiles)] if self.profiles else []
        return "\n".join([*notes, "", *lines, *profile])


def _row(stage: Stage) -> tuple[str, ...]:
    return (
        str(stage.users),
        "–" if stage.slots is None else str(stage.slots),
        "–" if stage.tokens_per_second is None else f"{stage.tokens_per_second:.1f}",
        duration(stage.ttft_p50),
        duration(stage.ttft_p95),
        duration(stage.itl_p50),
        duration(stage.itl_p95),
        duration(stage.itl_max),
        str(stage.generated_tokens),
        str(stage.requests),
        str(stage.rejected),
        str(sum(stage.errors.values())),
    )
