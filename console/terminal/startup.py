"""Starts that do not wait for the garbage collector, and ends that do not wait for a slow disk.

Importing Textual and pydantic makes so many objects, all of which stay, that looking through them for garbage is a
fifth of a start. Pydantic looks through every installed distribution for plugins, of which Slotdeck uses none.
"""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor


def stop_collecting() -> None:
    """Before imports and whatever else makes objects that stay."""
    gc.disable()


def skip_plugins() -> None:
    """Before pydantic is imported."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "true")


def collect_again() -> None:
    """What was made until now stays and is never looked through; what comes is."""
    gc.freeze()
    gc.enable()


class NonBlockingExecutor(ThreadPoolExecutor):
    """Threads that nobody waits for at the end: they only read, and the process ends without them."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Whoever asks."""
        super().shutdown(wait=False, cancel_futures=True)
