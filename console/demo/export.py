"""A demonstration as files: text, JSON, a picture of the table, and the engine's frames for `slotdeck replay`."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from slotdeck.console.bench.machine import describe_machine
from slotdeck.console.demo.lines import report_lines
from slotdeck.console.demo.state import ENDINGS, DemoState, Sample, result_from, row_of
from slotdeck.console.drawing.cells import Line, plain
from slotdeck.console.terminal.themes import ConsoleTheme

CELLS = 100
RECORDING = "recording.ndjson.gz"


def as_text(state: DemoState, cells: int = CELLS) -> str:
    """The table with its sentences."""
    return "\n".join(plain(line).rstrip() for line in report_lines(state, cells))


def as_json(state: DemoState, seed: int) -> dict[str, Any]:
    """Rows with their results and a sample for each second; a row not reached has ``null`` and none."""
    rows = [
        {name: getattr(row, name) for name in ("group", "name", "users", "who", "mode", "seconds", "scene")}
        | {
            "result": None if result is None else dataclasses.asdict(result),
            "samples": [dataclasses.asdict(sample) for sample in samples],
        }
        for row, result, samples in zip(state.rows, state.results, state.samples, strict=True)
    ]
    return {
        "engine": state.engine, "machine": describe_machine(), "seed": seed, "ended": state.ended, "rows": rows,
    }  # fmt: skip


def from_json(document: dict[str, Any]) -> DemoState:
    """The demonstration that :func:`as_json` wrote."""
    rows = document["rows"]
    state = DemoState([row_of(row) for row in rows], engine=document["engine"], ended=document["ended"])
    state.end_text = ENDINGS.get(state.ended, "")
    state.results = [None if row["result"] is None else result_from(row["result"]) for row in rows]
    state.samples = [[Sample(**sample) for sample in row["samples"]] for row in rows]
    return state


def as_svg(lines: list[Line], theme: ConsoleTheme, title: str) -> str:
    """A picture of lines, in fonts that a machine has."""
    width = max((len(plain(line)) for line in lines), default=1)
    screen = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        screen.print(Text.assemble(*((text, theme.styles[name]) for text, name in line)), no_wrap=True, crop=False)
    svg = screen.export_svg(title=title)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace")


def write(folder: Path, state: DemoState, seed: int) -> list[str]:
    """Write report.txt, report.json and report.svg; names of all files there. Raises OSError."""
    from slotdeck.console.terminal.themes import load_themes

    themes, _ = load_themes()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.txt").write_text(as_text(state) + "\n", "utf-8")
    (folder / "report.json").write_text(json.dumps(as_json(state, seed), indent=2) + "\n", "utf-8")
    picture = as_svg(report_lines(state, CELLS), next(iter(themes.values())), "slotdeck demo")
    (folder / "report.svg").write_text(picture, "utf-8")
    return [str(path) for path in sorted(folder.iterdir())]
