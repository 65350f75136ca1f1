"""Exit codes, and the one way in which a command ends with a sentence instead of a traceback."""

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
"""There is nothing to look at, now or then: neither a failure nor something that `doctor` found."""
FOUND = 5
"""`probe` has measured, and found something that a setting would cure."""

CODES = {
    OK: "ok",
    FAILED: "failed, or `doctor` found something",
    USAGE: "usage or bad setting",
    PORT_IN_USE: "port or socket in use",
    NO_ENGINE: "no engine or nothing recorded",
    FOUND: "`probe` found queueing or cut prompts",
    STEP_WEDGED: "a step of the engine did not return",
}
"""What each exit code says, in the words of the help and of the README."""
EPILOG = f"Exit codes: {'; '.join(f'{code} {words}' for code, words in CODES.items())}."


def say(message: str) -> None:
    """One line on stderr, so that stdout stays what was asked for."""
    print(f"slotdeck: {message}", file=sys.stderr, flush=True)


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print one line and end the command with ``code``."""
    import typer  # not before a command ends: a console that starts does without

    say(message)
    raise typer.Exit(code)
