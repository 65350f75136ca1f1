"""``make screenshots``: pictures of the real console over a real engine under load.

It records the engine's frames into ``tests/recordings/`` while simulated users stream. Then it shows chosen moments in
the real app and writes them to ``screenshots/`` as SVG and PNG, with a manifest. ``--keep-recordings`` records nothing;
names of scenes as arguments record only those. A test renders every picture again and compares.
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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from textual.pilot import Pilot

from slotdeck.console.app import ConsoleApp
from slotdeck.console.bench.machine import describe_machine
from slotdeck.console.drawing.cells import plain
from slotdeck.console.sources.base import Answer
from slotdeck.console.sources.recording import RecordingSource, read_frames, write_frames
from slotdeck.engine.paths import history_path
from slotdeck.engine.telemetry.frame import Frame, FrameEvent
from slotdeck.engine.telemetry.history.recorder import Recorder
from slotdeck.engine.telemetry.requests.detail import RequestDetail
from slotdeck.engine.telemetry.telemetry import Telemetry
from tests.support.real_engine import RealEngine

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "tests" / "recordings"
PICTURES = ROOT / "screenshots"
SIZES = ((80, 24), (120, 36), (180, 50))


@dataclass(frozen=True)
class Scene:
    """One situation: the engine's settings, the number of users, and the moment that the picture shows."""

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


def _swapping(frame: Frame) -> float:
    return 10 * sum(slot.state == "swapped" for slot in frame.slots) + _streaming(frame)


def _held(frame: Frame) -> float:
    held = sum(slot.state == "held" for slot in frame.slots)
    return 10 * min(held, 2) + min(frame.waiting_count or 0, 3)


SCENES = (
    Scene("empty", {"port": 8000}, 0, 2, lambda frame: frame.uptime or 0),
    Scene("five-people", {"port": 8000}, 6, 45, lambda frame: _streaming(frame) + (frame.minute.ttft_count or 0) / 20),
    Scene("pool-nearly-full", {"port": 8000, "context": 768, "kv_tokens": 1280, "slots": 4}, 6, 60, _full),
    Scene("preempting", {"port": 8000, "context": 512, "kv_tokens": 640, "slots": 5}, 7, 60, _preempting),
    Scene(
        "swapping",
        {"port": 8000, "context": 512, "kv_tokens": 640, "slots": 5, "preemption": "swap"},
        7,
        45,
        _swapping,
    ),
)


@dataclass(frozen=True)
class Opened:
    """A page over a recording, and the keys that lead to it.

    Keys in one string, separated by spaces, are pressed without waiting for the screen after each.
    """

    recording: str
    keys: tuple[str, ...]
    whole: bool = False
    """Show the whole recording, not only the frames up to the scene's moment."""


PAGES = {
    "history": Opened("preempting", ("4", "N")),
    "request": Opened("preempting", ("j", "enter")),
    "doctor": Opened("symptoms/queue-too-short", ("5",), whole=True),
    "planner": Opened(
        "symptoms/pool-holds-back",
        ("2", "enter 1 2 enter j enter 4 5 enter j j enter 7 0 0 enter j enter 1 5 0 enter"),
        whole=True,
    ),
    "static-batches": Opened("symptoms/static", (), whole=True),
}


@contextmanager
def visitors(engine: RealEngine, users: int) -> Iterator[None]:
    """Run simulated users who never pause, as ``slotdeck load --kind agent`` does."""
    if users == 0:
        yield
        return
    command = [sys.executable, "-m", "slotdeck.console.load", "--users", str(users), "--kind", "agent"]
    process = subprocess.Popen([*command, "--socket", str(engine.socket)], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def record(scene: Scene, path: Path) -> None:
    """Run a scene and write four frames a second to ``path``."""
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
    return moment_of(list(read_frames(path)), best)


def moment_of(frames: list[Frame], best: Callable[[Frame], float]) -> list[Frame]:
    """These frames up to and including the best one."""
    top = max(range(len(frames)), key=lambda index: best(frames[index]))
    return frames[: top + 1]


def monospaced(svg: str) -> str:
    """The picture with fonts that are installed, instead of one from the web."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace")


@dataclass(frozen=True)
class Picture:
    """The Live page at a scene's moment, or one of :data:`PAGES`."""

    name: str
    size: tuple[int, int]

    @property
    def stem(self) -> str:
        return f"{self.name}-{self.size[0]}x{self.size[1]}"

    def frames(self) -> list[Frame]:
        """The frames that the app shows."""
        opened = PAGES.get(self.name) or Opened(self.name, ())
        path = RECORDINGS / f"{opened.recording}.ndjson.gz"
        if not opened.whole:
            return moment(path, next(scene.best for scene in SCENES if scene.name == opened.recording))
        frames = list(read_frames(path))
        return moment_of(frames, _held) if self.name == "static-batches" else frames


def pictures() -> list[Picture]:
    """Every scene and page in every size."""
    return [Picture(name, size) for name in (*(scene.name for scene in SCENES), *PAGES) for size in SIZES]


class Watched(RecordingSource):
    """A recording that also answers for the detail of a request, from ``request-detail.json``."""

    async def request(self, request_id: str) -> RequestDetail | Answer:
        """The same detail for every id."""
        return RequestDetail.model_validate_json((RECORDINGS / "request-detail.json").read_text("utf-8"))


class Replayed:
    """Stands in for the engine of a recording, so that a history can be made of it."""

    def __init__(self, frames: list[Frame]) -> None:
        self.telemetry = Telemetry(lambda: 0.0, lambda: frames[-1].time)
        self._frames = iter(frames)

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]:
        return next(self._frames), event_cursor


async def keep_history(frames: list[Frame]) -> None:
    """Write the history that the engine would have recorded: one frame a second."""
    seconds: list[Frame] = []
    events: tuple[FrameEvent, ...] = ()
    for frame in frames:
        events += frame.events
        if not seconds or frame.time - seconds[-1].time >= 1 or frame is frames[-1]:
            seconds.append(frame.model_copy(update={"events": events}))
            events = ()
    recorder = Recorder(Replayed(seconds), history_path(), days=3650, megabytes=100)
    await recorder.open()
    for _ in seconds:
        recorder.take_frame()
    await recorder.write()
    await recorder.close()


async def render(picture: Picture) -> str:
    """The picture as SVG. Overwrites the history in the state folder."""
    frames, opened = picture.frames(), PAGES.get(picture.name)
    if opened is not None:
        history_path().unlink(missing_ok=True)
        await keep_history(frames)
    app = ConsoleApp(Watched(frames), clock=lambda: 0.0)
    with mock.patch("slotdeck.console.pages.history.time.time", return_value=frames[-1].time + 3600):
        async with app.run_test(size=picture.size) as pilot:
            while app.services.session.store.view.frame != frames[-1]:
                await pilot.pause(0.02)
            for key in opened.keys if opened is not None else ():
                await pilot.press(*key.split())
                await settled(pilot)
            app.draw()
            await pilot.pause()
            return monospaced(app.export_screenshot(title="slotdeck"))


async def settled(pilot: Pilot[int]) -> None:
    """Wait until the page has stopped changing and no longer says that it is loading."""
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    same = 0
    before: object = None
    while same < 5:
        await pilot.pause(0.05)
        lines = tuple(app.base.canvas.lines)
        busy = any("…" in plain(line) and line[0][1] == "label" for line in lines[3:5])
        same = same + 1 if lines == before and not busy else 0
        before = lines


def write(picture: Picture, svg: str) -> None:
    """Write the picture as SVG and as PNG."""
    import cairosvg

    stem = PICTURES / picture.stem
    stem.with_suffix(".svg").write_text(svg, "utf-8")
    whole = re.sub(r' clip-path="[^"]*"', "", svg)  # cairosvg clips without the translation
    cairosvg.svg2png(
        bytestring=whole.encode(), write_to=str(stem.with_suffix(".png")), output_width=picture.size[0] * 12
    )


def main() -> None:
    RECORDINGS.mkdir(exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    manifest: dict[str, Any] = {
        "commit": subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip(),
        "python": platform.python_version(),
        "machine": describe_machine(),
        "scenes": {},
    }
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    for scene in SCENES:
        path = RECORDINGS / f"{scene.name}.ndjson.gz"
        if "--keep-recordings" not in sys.argv and (not wanted or scene.name in wanted):
            print(f"recording {scene.name} ({scene.seconds:.0f} s)", flush=True)
            record(scene, path)
        manifest["scenes"][scene.name] = {
            "model": next(read_frames(path)).engine.model,
            "settings": scene.settings,
            "users": scene.users,
            "recording": f"tests/recordings/{path.name}",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_STATE_HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_DATA_HOME": folder, "TZ": "UTC"}
        time.tzset()
        for picture in pictures():
            write(picture, asyncio.run(render(picture)))
    for name, opened in PAGES.items():
        path = RECORDINGS / f"{opened.recording}.ndjson.gz"
        manifest["scenes"].setdefault(name, {
            "model": next(read_frames(path)).engine.model,
            "recording": f"tests/recordings/{opened.recording}.ndjson.gz",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        })  # fmt: skip
    (PICTURES / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
