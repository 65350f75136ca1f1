"""Draws a flame graph of the engine as SVG, from the engine's own measurements and from stacks that py-spy sampled.

py-spy (the extra ``profile``) reads the stacks from outside without slowing down the engine. Without it, or if the
system does not let one process inspect another, the picture only shows the measured parts.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from slotdeck.console.bench.step_profile import KERNELS, LOOP, PRODUCTS, WORDS
from slotdeck.engine.telemetry.step_profile import Profile

RATE = 100
"""Samples per second."""
TIMEOUT = 20.0
"""Seconds that py-spy may take to write its samples."""
WIDTH, ROW, SIDE = 1200, 18, 10
LETTER = 6.6
KERNELS_FRAME = "step (engine/kernels/library.py)"
"""The frame that py-spy sees while the native library computes; its class may precede it."""
WAITING_FRAME = "select (selectors.py)"
"""The frame in which the server waits for clients. It is not work, although py-spy may sample it."""
COLOURS = {"kernels": "#e0803a", "python": "#d9b44a", "server": "#5b8fb9"}


@dataclass
class StackSamples:
    """What py-spy wrote: lines of ``frame;frame;… count``. If there are none, ``problem`` says why."""

    lines: list[str] = field(default_factory=list)
    problem: str | None = None


def py_spy() -> str | None:
    """Path of the program, from this environment or from ``PATH``; ``None`` if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


@contextmanager
def sample_stacks(pid: int) -> Iterator[StackSamples]:
    """Sample the stacks of a process while the block runs. The lines are available after it."""
    result, program = StackSamples(), py_spy()
    if program is None:
        result.problem = "py-spy is not installed: pip install 'slotdeck[profile]'"
        yield result
        return
    with tempfile.TemporaryDirectory(prefix="slotdeck-profile-") as folder:
        output = Path(folder) / "stacks"
        command = [
            program,
            "record",
            "--pid",
            str(pid),
            "--rate",
            str(RATE),
            "--format",
            "raw",
            "--output",
            str(output),
        ]
        command += ["--threads", "--nolineno", "--nonblocking"]
        spy = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            yield result
        finally:
            if spy.poll() is None:
                spy.send_signal(signal.SIGINT)
            try:
                _, said = spy.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                spy.kill()
                _, said = spy.communicate()
        try:
            result.lines = output.read_text("utf-8", "replace").splitlines()
        except OSError:
            words = said.decode("utf-8", "replace").strip().splitlines()
            result.problem = f"py-spy could not inspect the engine ({words[-1] if words else spy.returncode})"


@dataclass
class Node:
    """A box: its weight, which includes its children, and the children by name."""

    weight: float = 0.0
    kind: str = "python"
    children: dict[str, Node] = field(default_factory=dict)

    def add(self, path: list[tuple[str, str]], weight: float) -> None:
        self.weight += weight
        if path:
            (name, kind), *rest = path
            self.children.setdefault(name, Node(kind=kind)).add(rest, weight)


def draw(recorded: StackSamples, profile: Profile, title: str, say: Callable[[str], None]) -> str:
    """The picture of one stage. If it has no stacks, ``say`` gets the reason."""
    if recorded.problem is None:
        return svg(
            sampled_tree(recorded.lines, profile), f"{title}: working threads, {RATE} samples a second", "samples"
        )
    say(f"{recorded.problem}; the flame graph only shows the measured parts")
    return svg(measured_tree(profile), f"{title}: time of the steps", "s")


def measured_tree(profile: Profile) -> Node:
    """The measured parts of the steps as boxes, in seconds."""
    root, parts = Node(), profile.parts
    step = ("engine loop: steps", "python")
    for name in LOOP:
        root.add([step, (WORDS[name], "python")], parts.get(name, 0.0))
    root.add([step, ("sampling", "python")], parts.get("sampling", 0.0))
    kernels = _kernel_parts(profile)
    forward = ("forward", "python")
    for path, seconds in kernels:
        root.add([step, forward, *path], seconds)
    root.add([step, forward], parts.get("forward", 0.0) - sum(seconds for _, seconds in kernels))
    root.add([step], profile.wall - root.weight)
    return root


def sampled_tree(lines: list[str], profile: Profile) -> Node:
    """The sampled stacks as boxes, in samples. Time in the native library is split as the library measured it."""
    root = Node()
    kernels = _kernel_parts(profile)
    whole = sum(seconds for _, seconds in kernels)
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if not stack or not count.isdecimal():
            continue
        frames = stack.split(";")
        if frames[-1].endswith(WAITING_FRAME):
            continue
        kind = "server" if any("uvicorn" in frame or "asyncio" in frame for frame in frames) else "python"
        path = [(frame, kind) for frame in frames]
        if frames[-1].endswith(KERNELS_FRAME) and whole > 0:
            for below, seconds in kernels:
                root.add([*path, *below], int(count) * seconds / whole)
        else:
            root.add(path, int(count))
    return root


def _kernel_parts(profile: Profile) -> list[tuple[list[tuple[str, str]], float]]:
    products = ("matrix products", "kernels")
    found = []
    for name in KERNELS:
        if name in profile.parts:
            word = (WORDS.get(name, name), "kernels")
            found.append(([products, word] if name in PRODUCTS else [word], profile.parts[name]))
    return found


def svg(root: Node, title: str, unit: str) -> str:
    """The picture. ``unit`` follows each weight. A tooltip shows the name, weight and share of a box."""
    boxes: list[str] = []
    deepest = 0

    def draw(node: Node, left: float, depth: int, scale: float) -> None:
        nonlocal deepest
        for name, child in sorted(node.children.items(), key=lambda item: -item[1].weight):
            width = child.weight * scale
            if width >= 0.3:
                deepest = max(deepest, depth)
                told = f"{name}: {child.weight:.2f} {unit}, {child.weight / root.weight:.1%}"
                boxes.append(_box(name, told, child.kind, (left, depth, width)))
                draw(child, left, depth + 1, scale)
            left += width

    if root.weight > 0:
        draw(root, SIDE, 0, (WIDTH - 2 * SIDE) / root.weight)
    height = (deepest + 1) * ROW + 60
    legend = "   ".join(f'<tspan fill="{COLOURS[kind]}">■</tspan> {kind}' for kind in COLOURS)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="11">',
            f'<rect width="{WIDTH}" height="{height}" fill="#fbfaf7"/>',
            f'<text x="{SIDE}" y="20" font-size="14">{escape(title)}</text>',
            f'<text x="{SIDE}" y="38">{legend}</text>',
            *boxes,
            "</svg>\n",
        ]
    )


def _box(name: str, told: str, kind: str, place: tuple[float, int, float]) -> str:
    left, depth, width = place
    top = 48 + depth * ROW
    room = int((width - 4) / LETTER)
    label = name if len(name) <= room else name[: room - 1] + "…" if room >= 3 else ""
    text = f'<text x="{left + 3:.1f}" y="{top + 12.5}">{escape(label)}</text>' if label else ""
    return (
        f"<g><title>{escape(told)}</title>"
        f'<rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="{ROW - 1}" rx="1.5"'
        f' fill="{COLOURS[kind]}" stroke="#fbfaf7" stroke-width="0.5"/>{text}</g>'
    )
