"""The stub server's tokenizer serves here too."""

from __future__ import annotations

from tests.server.conftest import tokenizer

__all__ = ["tokenizer"]
