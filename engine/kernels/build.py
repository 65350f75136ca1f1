"""Compiles the library into the cache, once for each version of its sources.

The file name contains a hash of sources, compiler and flags. So a changed source or compiler leads to a new build;
otherwise the existing file is used within a millisecond. The file appears atomically: two engines that start at the
same time both succeed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slotdeck.engine.paths import cache_folder

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "native"
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-maybe-uninitialized")
MAX_COMPILE_SECONDS = 300
"""Time limit for one compiler run."""

VARIANTS: dict[str, tuple[str, ...]] = {"portable": ()}
"""Compiler flags of `forward.cpp` for each instruction set. All of them are linked into one library."""
if platform.machine() in ("x86_64", "AMD64"):
    _AVX2 = ("-mavx2", "-mfma", "-mf16c")
    _AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
    VARIANTS |= {
        "avx2": _AVX2,
        "avx_vnni": (*_AVX2, "-mavxvnni"),
        "avx512_vnni": (*_AVX2, *_AVX512, "-mavx512vnni"),
    }


class BuildError(RuntimeError):
    """The library cannot be built or loaded. The message says in one line why and what helps."""


def compiler() -> str | None:
    """The C++ compiler: ``CXX`` if set, else g++, c++ or clang++; None if it is not on the path."""
    named = os.environ.get("CXX")
    return next(
        (found for name in ([named] if named else ["g++", "c++", "clang++"]) if (found := shutil.which(name))), None
    )


def library_path(extra_flags: tuple[str, ...] = ()) -> Path:
    """The path of the library for the present sources, which is built first if necessary.

    ``extra_flags`` are used for compiling and linking (for example sanitizers). Raises BuildError if there is no
    compiler, if it fails, or if the cache cannot be written.
    """
    program = compiler()
    folder = cache_folder() / "kernels"
    if program is None:
        raise BuildError("no C++ compiler was found: install g++ and restart for the faster native kernels")
    target = folder / f"{_fingerprint(program, extra_flags)}.so"
    if target.is_file():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            start = time.monotonic()
            built = _compile(program, Path(scratch), extra_flags)
            built.replace(target)
    except OSError as error:
        raise BuildError(f"the native kernels cannot be written to {folder}: {error.strerror or error}") from error
    logger.info("compiled the native kernels in %.1f s", time.monotonic() - start)
    return target


def _fingerprint(program: str, extra_flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    resolved = Path(program).resolve()
    compiler_state = (str(resolved), resolved.stat().st_mtime_ns, resolved.stat().st_size)
    digest.update(repr((compiler_state, FLAGS, VARIANTS, extra_flags, platform.machine())).encode())
    return digest.hexdigest()[:24]


def _compile(program: str, folder: Path, extra_flags: tuple[str, ...]) -> Path:
    """Compile all files in parallel and link them. Returns the path of the library in ``folder``."""
    jobs: list[tuple[str, tuple[str, ...]]] = [("thread_pool", ()), ("api", ())]
    jobs += [(f"forward:{name}", (f"-DSLOTDECK_ISA={name}", *flags)) for name, flags in VARIANTS.items()]

    def compile_one(job: tuple[str, tuple[str, ...]]) -> str:
        name, flags = job
        output = str(folder / f"{name.replace(':', '_')}.o")
        source = str(SOURCES / f"{name.partition(':')[0]}.cpp")
        _run([program, *FLAGS, *extra_flags, *flags, "-c", source, "-o", output])
        return output

    with ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool:
        objects = list(pool.map(compile_one, jobs))
    library = folder / "library.so"
    _run([program, "-shared", "-pthread", *extra_flags, *objects, "-o", str(library), "-lm"])
    return library


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_COMPILE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the C++ compiler {command[0]} did not run: {error}") from error
    if done.returncode != 0:
        logger.warning("%s\n%s", " ".join(command), done.stderr[-4000:])
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise BuildError(f"the native kernels did not compile with {command[0]}: {reason}")
