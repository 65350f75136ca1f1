"""What can go wrong between the console and an engine's admin API, as sentences for people.

Both clients use these: the synchronous one of commands (:mod:`slotdeck.console.client.admin`) and the asynchronous one
of the console (:mod:`slotdeck.console.sources.engine`). Standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

BROKEN = "the connection to the engine broke"
UNREADABLE = "unreadable answer from the engine"


def no_engine(socket: Path) -> str:
    """Nothing listens on the socket."""
    return f"no engine answers at {socket}"


def silent(seconds: float) -> str:
    """The engine sent nothing for this long."""
    return f"the engine has said nothing for {seconds:.0f} s"


def unreadable(problem: str) -> str:
    """An answer does not have the expected fields. ``problem`` says where and why."""
    return f"{UNREADABLE} ({problem}); versions may differ, so restart the engine"


def refusal(status: int, document: Any) -> str:
    """Why the engine refused a call: its own sentence if the decoded answer has one, else the HTTP status."""
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else f"the admin API answered {status}"


def validation_problem(errors: list[Any]) -> str:
    """The first of pydantic's errors in a few words."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where or 'JSON'}: {first['msg']}"
