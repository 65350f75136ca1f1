"""Starts that do not wait for the garbage collector.

Importing Textual and pydantic makes so many objects, all of which stay, that looking through them for garbage is a
fifth of a start.
"""

from __future__ import annotations

import gc


def stop_collecting() -> None:
    """Before imports and whatever else makes objects that stay."""
    gc.disable()


def collect_again() -> None:
    """What was made until now stays and is never looked through; what comes is."""
    gc.freeze()
    gc.enable()
