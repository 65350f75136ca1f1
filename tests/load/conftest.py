"""The command line's fixtures serve here too."""

from __future__ import annotations

from tests.cli.conftest import deck

__all__ = ["deck"]
