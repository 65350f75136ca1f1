"""Typed reading of a JSON body's fields. Each reader gives the value or raises a 400 that names the field and what is
allowed; ``null`` equals absent, and a boolean is never a number.
"""

from __future__ import annotations

from typing import Any

from slotdeck.engine.server.errors import invalid


def boolean(document: dict[str, Any], key: str, name: str | None = None) -> bool:
    """``name`` is how errors call the field, where that is not its key. Absent is False."""
    value, name = document.get(key), name or key
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"'{name}' must be true or false")
    return bool(value)


def integer(document: dict[str, Any], name: str, least: int, most: int | None) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    allowed = f"an integer of at least {least}" if most is None else f"an integer between {least} and {most}"
    if type(value) is not int or value < least or (most is not None and value > most):
        raise invalid(name, f"'{name}' must be {allowed}")
    return value


def number(document: dict[str, Any], name: str, least: float, most: float, default: float) -> float:
    """A finite number in range. JSON's 1e400 reads as infinity and fails the comparison like any other."""
    value = document.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not least <= value <= most:
        raise invalid(name, f"'{name}' must be a number between {least} and {most}")
    return float(value)
