"""A table of where a step's time goes, from the engine's own counters."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO

from rich.console import Console
from rich.table import Table

from slotdeck.engine.telemetry.step_profile import Profile

PRODUCTS = ("qkv", "output", "gate_up", "down")
WORDS = {
    "qkv": "Q, K, V; rotary; KV write",
    "output": "output",
    "gate_up": "gate, up, SiLU",
    "down": "down",
    "draw": "sampling",
    "plan": "plan",
    "lay_out": "lay out the batch",
    "commit": "commit",
    "hand_over": "hand over to HTTP",
}
LOOP = ("plan", "lay_out", "commit", "hand_over")
KERNELS = ("attention", "head", "norms", "embedding", "draw", *PRODUCTS)
"""Parts that the native kernels measure within ``forward``."""


@dataclass(frozen=True)
class ProfileLine:
    """One line of the table, with its total seconds. An ``inner`` line is part of the last line that is not inner."""

    name: str
    seconds: float
    inner: bool = False


def shares(profile: Profile) -> list[ProfileLine]:
    """The parts of all steps. Lines that are not ``inner`` add up to ``profile.wall``.

    The last line is the unmeasured rest: between the parts, and waiting for a lock or for the GIL.
    """
    parts = profile.parts
    kernels = [name for name in KERNELS if name in parts]
    lines = []
    if kernels:
        lines.append(ProfileLine("attention", parts["attention"]))
        lines.append(ProfileLine("matrix products", sum(parts[name] for name in PRODUCTS)))
        lines += [ProfileLine(WORDS[name], parts[name], inner=True) for name in PRODUCTS]
        lines.append(ProfileLine("head", parts["head"]))
        lines.append(ProfileLine("norms, embedding", parts["norms"] + parts["embedding"]))
        around = parts["forward"] - sum(parts[name] for name in kernels)
    else:
        lines.append(ProfileLine("model (torch)", parts.get("forward", 0.0)))
        around = 0.0
    lines.append(ProfileLine("sampling", parts.get("sampling", 0.0) + parts.get("draw", 0.0)))
    python = [ProfileLine(WORDS[name], parts.get(name, 0.0), inner=True) for name in LOOP]
    if kernels:
        python.append(ProfileLine("around the kernels", around, inner=True))
    lines += [ProfileLine("Python", sum(line.seconds for line in python)), *python]
    lines.append(ProfileLine("rest", profile.wall - sum(line.seconds for line in lines if not line.inner)))
    return lines


def profile_table(columns: list[tuple[str, Profile]]) -> str:
    """Milliseconds per step and their share, with one column for each stage (its heading and its profile)."""
    columns = [(heading, profile) for heading, profile in columns if profile.steps]
    if not columns:
        return "no step was computed"
    table = Table(title="Where a step's time goes, ms per step", title_justify="left", box=None, padding=(0, 1))
    table.add_column("")
    for heading, _ in columns:
        table.add_column(heading, justify="right")
    lines = [shares(profile) for _, profile in columns]
    # All stages have the same lines, because they ran on one engine.
    for row, first in enumerate(lines[0]):
        cells = []
        for (_, profile), stage in zip(columns, lines, strict=True):
            seconds = stage[row].seconds
            share = seconds / profile.wall if profile.wall else 0.0
            cells.append(f"{seconds / profile.steps * 1000:.2f} {share:>6.1%}")
        table.add_row(f"  {first.name}" if first.inner else first.name, *cells, style="dim" if first.inner else "")
    table.add_section()
    walls = [profile.wall / profile.steps for _, profile in columns]
    table.add_row("step", *(f"{wall * 1000:.2f} {1:>6.1%}" for wall in walls))
    table.add_row("tokens per step", *(f"{profile.tokens / profile.steps:.2f}       " for _, profile in columns))
    table.add_row("HTTP, processor time beside it", *(_http(profile) for _, profile in columns))
    text = StringIO()
    Console(file=text, width=40 + 18 * len(columns), no_color=True).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _http(profile: Profile) -> str:
    each = f", {profile.server_cpu / profile.tokens * 1e6:.0f} µs/token" if profile.tokens else ""
    return f"{profile.server_cpu / profile.steps * 1000:.2f}{each}"
