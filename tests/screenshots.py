"""``make screenshots``: pictures of the real console over a real engine under real load.

Records the engine's own frames while simulated users stream into ``tests/recordings/``, which the snapshot tests
read (``--keep-recordings`` leaves those as they are), then shows chosen moments in the real app and writes them as SVG
and PNG beside a manifest (``screenshots/``).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from console.app import ConsoleApp
from console.load.machine import describe_machine
from console.sources.recording import RecordingSource, read_frames, write_frames
from engine.telemetry.frame import Frame
from tests.console.helpers import screen_text
from tests.console.test_history_page import record as record_history
from tests.real_engine import RealEngine

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "tests" / "recordings"
PICTURES = ROOT / "screenshots"
SIZES = ((80, 24), (120, 36))


@dataclass(frozen=True)
class Scene:
    """One situation: how the engine is set, who comes, and which moment of it is the picture."""

    name: str
    settings: dict[str, Any]
    users: int
    seconds: float
    best: Callable[[Frame], float]
    """The frame with the highest value is shown."""


def _streaming(frame: Frame) -> float:
    return sum(slot.state == "decode" for slot in frame.slots) + 0.5 * any(
        slot.state == "prefill" for slot in frame.slots
    ) + 0.1 * min(frame.waiting_count or 0, 3)  # fmt: skip


def _full(frame: Frame) -> float:
    return (frame.pool.live or 0) / (frame.pool.total or 1)


def _preempting(frame: Frame) -> float:
    return 10 * sum(slot.state == "preempted" for slot in frame.slots) + _streaming(frame)


SCENES = (
    Scene("empty", {"port": 8000}, 0, 2, lambda frame: frame.uptime or 0),
    Scene("five-people", {"port": 8000}, 6, 45, lambda frame: _streaming(frame) + (frame.minute.ttft_count or 0) / 20),
    Scene("pool-nearly-full", {"port": 8000, "context": 768, "kv_tokens": 1280, "slots": 4}, 6, 60, _full),
    Scene("preempting", {"port": 8000, "context": 512, "kv_tokens": 640, "slots": 5}, 7, 60, _preempting),
)


@dataclass(frozen=True)
class Opened:
    """A page over a recording that another command makes: which key opens it, and what it says when it is ready."""

    name: str
    recording: Path
    key: str
    ready: str


OPENED = (Opened("doctor", RECORDINGS / "symptoms" / "queue-too-short.ndjson.gz", "5", "The queue is full, by load"),)


@contextmanager
def visitors(engine: RealEngine, users: int) -> Iterator[None]:
    """Simulated people who never pause, as ``slotdeck load --kind agent`` brings them."""
    if users == 0:
        yield
        return
    command = [sys.executable, "-m", "console.load", "--users", str(users), "--kind", "agent"]
    process = subprocess.Popen([*command, "--socket", str(engine.socket)], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def record(scene: Scene, path: Path) -> None:
    """Run a scene and write its frames at 4 Hz."""
    frames: list[Frame] = []
    with (
        RealEngine(**scene.settings) as engine,
        visitors(engine, scene.users),
        engine.admin.stream("GET", "/admin/stream?rate=4") as response,
    ):
        for line in response.iter_lines():
            frames.append(Frame.model_validate_json(line))
            if frames[-1].time - frames[0].time >= scene.seconds:
                break
    write_frames(path, frames)


def moment(path: Path, best: Callable[[Frame], float]) -> list[Frame]:
    """The frames of a recording up to and including its best one."""
    frames = list(read_frames(path))
    top = max(range(len(frames)), key=lambda index: best(frames[index]))
    return frames[: top + 1]


def monospaced(svg: str) -> str:
    """The picture with fonts that a machine has, instead of one fetched from a web page."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace")


async def take(frames: list[Frame], size: tuple[int, int], name: str, opened: Opened | None = None) -> None:
    """Show the last of ``frames`` in the real app, with a page ``opened`` on them, and write the picture."""
    import cairosvg

    app = ConsoleApp(RecordingSource(frames))
    async with app.run_test(size=size) as pilot:
        while app.store.view.frame != frames[-1]:
            await pilot.pause(0.02)
        if opened is not None:
            await pilot.press(opened.key)
            while opened.ready not in screen_text(app):
                await pilot.pause(0.02)
        app.draw()
        await pilot.pause()
        svg = monospaced(app.export_screenshot(title="slotdeck"))
    stem = PICTURES / f"{name}-{size[0]}x{size[1]}"
    stem.with_suffix(".svg").write_text(svg, "utf-8")
    whole = re.sub(r' clip-path="[^"]*"', "", svg)  # cairosvg clips without the translation
    cairosvg.svg2png(bytestring=whole.encode(), write_to=str(stem.with_suffix(".png")), output_width=size[0] * 12)


def main() -> None:
    RECORDINGS.mkdir(exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    manifest: dict[str, Any] = {
        "commit": subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip(),
        "python": platform.python_version(),
        "machine": describe_machine(),
        "scenes": {},
    }
    for scene in SCENES:
        path = RECORDINGS / f"{scene.name}.ndjson.gz"
        if "--keep-recordings" not in sys.argv:
            print(f"recording {scene.name} ({scene.seconds:.0f} s)", flush=True)
            record(scene, path)
        frames = moment(path, scene.best)
        for size in SIZES:
            asyncio.run(take(frames, size, scene.name))
        manifest["scenes"][scene.name] = {
            "model": frames[-1].engine.model,
            "settings": scene.settings,
            "users": scene.users,
            "recording": f"tests/recordings/{path.name}",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
    for opened in OPENED:
        frames = list(read_frames(opened.recording))
        with tempfile.TemporaryDirectory() as state, patch.dict(os.environ, XDG_STATE_HOME=state):
            asyncio.run(record_history(frames[: len(frames) // 10 * 10]))
            for size in SIZES:
                asyncio.run(take(frames, size, opened.name, opened))
        manifest["scenes"][opened.name] = {
            "model": frames[-1].engine.model,
            "recording": str(opened.recording.relative_to(ROOT)),
            "sha256": hashlib.sha256(opened.recording.read_bytes()).hexdigest(),
        }
    (PICTURES / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
