"""Exit codes, and how a command ends with a sentence instead of a traceback."""

from __future__ import annotations

import sys
from typing import NoReturn

from slotdeck.console.hosting.process import STEP_WEDGED

OK = 0
FAILED = 1
USAGE = 2
PORT_IN_USE = 3
NO_ENGINE = 4
NOTHING_RECORDED = NO_ENGINE
"""There is nothing to look at, neither now nor in the history. This is not a failure."""
FOUND = 5
"""`doctor` or `probe` found a problem."""

CODES = {
    OK: "ok",
    FAILED: "failed",
    USAGE: "usage or bad setting",
    PORT_IN_USE: "port or socket in use",
    NO_ENGINE: "no engine or nothing recorded",
    FOUND: "`doctor` or `probe` found a problem",
    STEP_WEDGED: "a step of the engine did not return",
}
"""What each exit code means, as the help and engine/API.md say it."""
EPILOG = f"Exit codes: {'; '.join(f'{code} {words}' for code, words in CODES.items())}."


def say(message: str) -> None:
    """Print one line on stderr, so that stdout contains only the requested output."""
    print(f"slotdeck: {message}", file=sys.stderr, flush=True)


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print one line and end the command with ``code``."""
    import typer  # Late, because a console that starts does without it.

    say(message)
    raise typer.Exit(code)
