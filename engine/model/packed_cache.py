"""Packed weights in the cache: one file per source and type of weights, which later starts map into memory.

A file is made again when its source or the format changes, and it is removed when its source is gone. Small models are
packed into memory at every start, and so are all models while the disk has too little room.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from slotdeck.engine.kernels.packed import pad
from slotdeck.engine.model.checkpoint import Checkpoint
from slotdeck.engine.paths import cache_folder

logger = logging.getLogger(__name__)

FORMAT = 2
"""Must rise when the order or the rounding of packed weights changes."""
_MAGIC = b"slotdeck packed weights\n"
_ALIGNMENT = 4096
_MIN_KEPT_BYTES = 32 << 20
"""Smaller models are packed in a moment, so no file is kept for them."""
_MAX_HEADER_BYTES = 1 << 20


def load_or_pack(checkpoint: Checkpoint, weights: str, nbytes: int, pack: Callable[[np.ndarray], None]) -> np.ndarray:
    """The packed weights, uint8 [nbytes]: mapped read-only from the cache, or filled now by ``pack`` and kept there.

    ``weights`` is their type. Raises what ``pack`` raises. Trouble with the cache only costs the time of packing.
    """
    path, key = _cache_file(checkpoint, weights), _key(checkpoint)
    memory = _map(path, key, nbytes)
    if memory is None:
        start = time.monotonic()
        memory = _write(path, key, nbytes, pack)
        logger.info("packed the weights of %s in %.1f s", checkpoint.config.id, time.monotonic() - start)
    return memory


def _cache_file(checkpoint: Checkpoint, weights: str) -> Path:
    """One file for each source and type, so that a changed source replaces its packed weights."""
    name = hashlib.sha256(str(checkpoint.files[0].resolve()).encode()).hexdigest()[:16]
    return cache_folder() / "packed" / f"{name}.{weights}"


def _key(checkpoint: Checkpoint) -> str:
    """What the packed weights were made from, as JSON. Any difference means that they are packed again."""
    files = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.files]
    return json.dumps({"files": files, "format": FORMAT})


def _header(key: str) -> bytes:
    """The beginning of the file, padded so that the arrays start at a page."""
    text = key.encode()
    header = _MAGIC + struct.pack("<Q", len(text)) + text
    return header.ljust(pad(len(header), _ALIGNMENT), b"\0")


def _map(path: Path, key: str, nbytes: int) -> np.ndarray | None:
    """The arrays of a cached file, read-only; None if it is missing, from another source, or truncated."""
    wanted = _header(key)
    try:
        with path.open("rb") as file:
            if file.read(len(wanted)) != wanted or os.fstat(file.fileno()).st_size != len(wanted) + nbytes:
                return None
            return np.memmap(file, np.uint8, "r", offset=len(wanted), shape=(nbytes,))
    except OSError:
        return None


def _remove_orphans(folder: Path) -> None:
    """Remove packed weights whose source does not exist any more."""
    for path in folder.glob("*.int[48]"):
        try:
            with path.open("rb") as file:
                file.seek(len(_MAGIC))
                (length,) = struct.unpack("<Q", file.read(8))
                source = json.loads(file.read(min(length, _MAX_HEADER_BYTES)))["files"][0][0]
            if not Path(source).exists():
                path.unlink()
        except (OSError, ValueError, LookupError, struct.error):
            continue


def _write(path: Path, key: str, nbytes: int, pack: Callable[[np.ndarray], None]) -> np.ndarray:
    """Let ``pack`` fill the arrays, in the cached file if it can be written, else in memory."""
    header = _header(key)
    temporary: Path | None = None
    if nbytes < _MIN_KEPT_BYTES:
        memory: np.ndarray = np.zeros(nbytes, np.uint8)
        pack(memory)
        return memory
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_orphans(path.parent)
        if shutil.disk_usage(path.parent).free < 2 * nbytes:
            raise OSError("too little room on the disk")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            temporary = Path(file.name)
            file.write(header)
            file.truncate(len(header) + nbytes)
            file.flush()
            memory = np.memmap(file, np.uint8, "r+", offset=len(header), shape=(nbytes,))
    except OSError as error:
        logger.warning("packed weights are not kept in %s (%s): every start packs them again", path.parent, error)
        memory = np.zeros(nbytes, np.uint8)
    try:
        pack(memory)
        if temporary is not None:
            temporary.replace(path)
            temporary = None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return memory
