"""Puts one small fault at a time into a folder; its tests must notice. ``make mutants ROOM=engine/core`` runs it.

It works on a copy of the repository in a temporary folder. A first run without faults notes which tests run which
lines. Then each mutant gets a process with the tests that run its lines, which ends at the first failure. A mutant is
killed when a test fails or takes too long.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.mutation.coverage import Coverage, LineTracer
from tests.mutation.mutants import Mutant, mutants_of

TESTS = {
    "engine/core": ["tests/core"],
    "engine/telemetry": ["tests/telemetry"],
    "engine/text": ["tests/text"],
    "engine/loop": ["tests/engine/test_loop.py", "tests/engine/test_loop_faults.py"],
    "engine/server": ["tests/server"],
    "console/advice": ["tests/advice"],
}
"""The tests of each folder; of any other one ``--tests`` names them."""
NOT_SELECTED = "not pty and not snapshot"
MIN_SECONDS = 20.0
OWN = ("slotdeck", "tests", "conftest")
UNUSED_PLUGINS = ("cacheprovider", "syrupy", "textual-snapshot", "anyio")
HEAVY = (
    "_pytest", "aiosqlite", "fastapi", "httpx", "huggingface_hub", "hypothesis", "jinja2", "numpy", "openai",
    "prometheus_client", "psutil", "pydantic", "pydantic_core", "pytest", "pytest_asyncio", "rich", "safetensors",
    "starlette", "textual", "tokenizers", "torch", "transformers", "typer", "uvicorn", "xdist",
)  # fmt: skip
"""Packages that are imported once, if the tests use them, instead of for each mutant."""


def main() -> None:
    """Run the mutants of one folder or file, print each survivor and how many were killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("room", help="a folder or file below engine/ or console/")
    parser.add_argument("--sample", type=int, default=0, help="run so many, chosen by --seed; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="*", help="test files or folders, instead of those of the room")
    parser.add_argument("--markers", default=NOT_SELECTED, help="pytest -m")
    given = parser.parse_args()
    tests = given.tests or next((TESTS[room] for room in TESTS if given.room.startswith(room)), None)
    if tests is None:
        parser.error(f"say with --tests which tests are those of {given.room}")
    with tempfile.TemporaryDirectory(prefix="slotdeck-mutants-") as name:
        folder = Path(name)
        _copy(folder)
        os.chdir(folder)
        sys.path[:] = [str(folder / ".src"), str(folder), *(p for p in sys.path if p not in ("", os.getcwd()))]
        mutants = list(_mutants(folder, given.room))
        if given.sample and given.sample < len(mutants):
            mutants = sorted(random.Random(given.seed).sample(mutants, given.sample), key=lambda m: (m.path, m.start))
        sys.exit(_run_all(folder, mutants, [*tests, "-m", given.markers]))


def _copy(folder: Path) -> None:
    """The tracked and the new files of this checkout, with its links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = folder / name
        if Path(name).is_symlink() or Path(name).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, target, follow_symlinks=False)


def _mutants(folder: Path, room: str) -> Iterable[Mutant]:
    path = folder / room
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        yield from mutants_of(str(file.relative_to(folder)), file.read_text("utf-8"))


def _run_all(folder: Path, mutants: list[Mutant], arguments: list[str]) -> int:
    coverage = _baseline(folder, sorted({mutant.path for mutant in mutants}), arguments)
    print(f"{len(mutants)} mutants, all tests take {coverage.seconds:.0f} s", flush=True)
    killed: Counter[str] = Counter()
    total = Counter(mutant.path for mutant in mutants)
    for number, mutant in enumerate(mutants, 1):
        tests = coverage.tests_of(mutant.path, mutant.lines)
        if tests and _is_killed(folder, mutant, tests, max(MIN_SECONDS, 4 * coverage.seconds)):
            killed[mutant.path] += 1
        else:
            how = "survived" if tests else "untested"
            print(f"{number:4} {how}  {mutant.path}:{mutant.line}  {mutant.what}", flush=True)
    for name in total:
        print(f"{killed[name]:4} of {total[name]:4}  {name}")
    print(f"{killed.total():4} of {total.total():4}  killed, {killed.total() / max(1, total.total()):.1%}")
    return 0


def _is_killed(folder: Path, mutant: Mutant, tests: list[str], limit: float) -> bool:
    path = folder / mutant.path
    source = path.read_text("utf-8")
    path.write_text(mutant.applied(source), "utf-8")
    try:
        return _in_child(lambda: _tests(tests), limit) != 0
    finally:
        path.write_text(source, "utf-8")


def _baseline(folder: Path, paths: list[str], arguments: list[str]) -> Coverage:
    """Run the tests without a mutant. Afterwards the heavy packages that they need are imported here once for all."""
    results, listing = folder / "coverage.json", folder / "modules.txt"

    def traced() -> int:
        tracer = LineTracer({str((folder / path).resolve()): path for path in paths})
        tracer.start()
        code = _tests(arguments, [tracer])
        tracer.stop()
        tracer.save(results)
        listing.write_text("\n".join(sorted(sys.modules)))
        return code

    if _in_child(traced, 1200.0, quiet=False) != 0:
        print("the tests fail without any mutant")
        sys.exit(1)
    for name in listing.read_text().split("\n"):
        if name.split(".")[0] in HEAVY:
            try:
                importlib.import_module(name)
            except Exception:  # some can only be imported by their own package
                continue
    return Coverage(results)


def _tests(arguments: list[str], plugins: list[object] | None = None) -> int:
    import pytest

    options = ["-x", "-q", "--hypothesis-seed=0", "--no-header"]
    options += [f"-pno:{name}" for name in UNUSED_PLUGINS]
    return int(pytest.main([*options, *arguments], plugins=plugins))


def _in_child(work: Callable[[], int], limit: float, *, quiet: bool = True) -> int:
    """What ``work`` gives in a process of its own; 124 when it takes longer than ``limit`` seconds."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _settle(quiet)
            code = work()
        finally:
            os._exit(code)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            _end_group(pid)
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    _end_group(pid)
    os.waitpid(pid, 0)
    return 124


def _settle(quiet: bool) -> None:
    """Make this process one that knows only the copy of the repository."""
    os.setsid()
    if quiet:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["PYTHONPATH"] = f"{Path.cwd() / '.src'}:{Path.cwd()}"
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]  # they came from the checkout
    importlib.invalidate_caches()


def _end_group(pid: int) -> None:
    """End what the tests started and left."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main()
