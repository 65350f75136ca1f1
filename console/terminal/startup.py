"""Faster starts and ends: no garbage collection during imports, no search for plugins, no wait for a slow disk.

Importing Textual and pydantic creates many objects, all of which stay. Searching them for garbage takes a fifth of a
start. Pydantic searches every installed distribution for plugins, and Slotdeck uses none.
"""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor


def stop_collecting() -> None:
    """Stop garbage collection. Call it before imports."""
    gc.disable()


def skip_plugins() -> None:
    """Make pydantic skip plugins. Call it before pydantic is imported."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "true")


def collect_again() -> None:
    """Collect garbage again, but only among objects that are created from now on."""
    gc.freeze()
    gc.enable()


class NonBlockingExecutor(ThreadPoolExecutor):
    """A thread pool that nobody waits for at the end. Its threads only read, so the process may end without them."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Never wait, whatever the caller asks for."""
        super().shutdown(wait=False, cancel_futures=True)
