"""Exit codes, and the one way in which a command ends with a sentence instead of a traceback."""

from __future__ import annotations

import sys
from typing import NoReturn

OK = 0
FAILED = 1
USAGE = 2
PORT_IN_USE = 3
NO_ENGINE = 4
FOUND = 5
"""`probe` has measured, and found something that a setting would cure."""

EPILOG = "Exit codes: 0 ok, 1 failed, 2 usage or bad setting, 3 port in use, 4 no engine."


def say(message: str) -> None:
    """One line on stderr, so that stdout stays what was asked for."""
    print(f"slotdeck: {message}", file=sys.stderr, flush=True)


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print one line and end the command with ``code``."""
    import typer  # not before a command ends: a console that starts does without

    say(message)
    raise typer.Exit(code)
