"""Which kernel library is under test, and how many examples it is given."""

from __future__ import annotations

import os
from pathlib import Path

from slotdeck.engine.kernels.build import BuildError, library_path

PATH = "SLOTDECK_TEST_KERNELS"
"""Names a library to test in place of the usual one (the sanitizers' build)."""


EXAMPLES = 20 if PATH in os.environ else 60
"""Of a property of a product; the sanitizers watch every access of each, many times as slowly."""


def library_under_test() -> Path | None:
    """The library under test; None without a compiler."""
    try:
        return Path(os.environ[PATH]) if PATH in os.environ else library_path()
    except BuildError:
        return None
