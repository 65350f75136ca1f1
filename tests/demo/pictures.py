"""``make screenshots``: pictures of the Demo screen after a real demonstration on a real engine.

The demonstration is kept in ``tests/recordings/demo.json.gz`` (``--keep-recordings`` leaves it as it is), where a test
draws it again.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from slotdeck.console.app import ConsoleApp
from slotdeck.console.demo.export import RECORDING, from_json
from slotdeck.console.demo.perform import perform
from slotdeck.console.demo.wanted import Wanted
from slotdeck.console.pages.demo import DemoPage
from slotdeck.console.sources.recording import RecordingSource, read_frames
from slotdeck.engine.telemetry.frame import Frame
from tests.screenshots import PICTURES, RECORDINGS, SIZES, monospaced
from tests.support.real_engine import RealEngine

PATH = RECORDINGS / "demo.json.gz"
WANTED = Wanted(who=("agent",), seconds=10)
COMMAND = "slotdeck demo --users 2,5,20 --kinds agent --modes serial,static,continuous --seconds 10 --seed 1"
"""What records the same."""
SHOWN = 5
"""Row that is selected in the picture: five agents, continuous."""


def record() -> None:
    """Run the demonstration and keep what it told."""
    with RealEngine(port=8000) as engine, tempfile.TemporaryDirectory() as name:
        asyncio.run(perform(engine.socket, WANTED, seed=1, on_event=lambda _event: None, folder=Path(name)))
        keep(Path(name))


def keep(folder: Path) -> None:
    """Take what `slotdeck demo --output FOLDER` left."""
    report = json.loads((folder / "report.json").read_text("utf-8"))
    *_, frame = read_frames(folder / RECORDING)
    with gzip.open(PATH, "wt", encoding="utf-8") as file:
        json.dump({"report": report, "frame": frame.model_dump(mode="json")}, file)


def recorded() -> tuple[dict[str, Any], Frame]:
    """The report and the engine's last frame."""
    with gzip.open(PATH, "rt", encoding="utf-8") as file:
        document = json.load(file)
    return document["report"], Frame.model_validate(document["frame"])


async def take(size: tuple[int, int]) -> None:
    """Show the demonstration in the real app and write the picture."""
    import cairosvg

    report, frame = recorded()
    app = ConsoleApp(RecordingSource([frame]))
    async with app.run_test(size=size) as pilot:
        while app.services.session.store.view.frame is None:
            await pilot.pause(0.02)
        await pilot.press("3")
        page = app.services.navigator.page
        assert isinstance(page, DemoPage)
        page.show(from_json(report), SHOWN)
        await pilot.pause()
        svg = monospaced(app.export_screenshot(title="slotdeck"))
    stem = PICTURES / f"demo-{size[0]}x{size[1]}"
    stem.with_suffix(".svg").write_text(svg, "utf-8")
    whole = re.sub(r' clip-path="[^"]*"', "", svg)  # cairosvg clips without the translation
    cairosvg.svg2png(bytestring=whole.encode(), write_to=str(stem.with_suffix(".png")), output_width=size[0] * 12)


def main() -> None:
    if "--keep-recordings" not in sys.argv:
        print("recording the demo (2 min)", flush=True)
        record()
    for size in SIZES:
        asyncio.run(take(size))
    report, _ = recorded()
    file = PICTURES / "manifest.json"
    manifest = json.loads(file.read_text("utf-8"))
    manifest["scenes"]["demo"] = {
        "model": report["engine"]["model"],
        "command": COMMAND,
        "recording": f"tests/recordings/{PATH.name}",
        "sha256": hashlib.sha256(PATH.read_bytes()).hexdigest(),
    }
    file.write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
