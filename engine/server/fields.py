"""Typed readers for the fields of a JSON body.

Each returns the value, or raises ApiError 400 that names the field and what is allowed. ``null`` means absent, and a
boolean is never a number.
"""

from __future__ import annotations

from typing import Any

from slotdeck.engine.server.errors import invalid


def boolean(document: dict[str, Any], key: str, name: str | None = None) -> bool:
    """True or False; absent is False. ``name`` is what errors call the field, if not ``key``."""
    value, name = document.get(key), name or key
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"'{name}' must be true or false")
    return bool(value)


def integer(document: dict[str, Any], name: str, minimum: int, maximum: int | None) -> int | None:
    """An integer in the range, or None if absent. A ``maximum`` of None means no upper bound."""
    value = document.get(name)
    if value is None:
        return None
    allowed = f"of at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
    if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
        raise invalid(name, f"'{name}' must be an integer {allowed}")
    return value


def number(document: dict[str, Any], name: str, minimum: float, maximum: float, default: float) -> float:
    """A finite number in the range, or ``default`` if absent. JSON's 1e400 reads as infinity, which is out of range."""
    value = document.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not minimum <= value <= maximum:
        raise invalid(name, f"'{name}' must be a number between {minimum} and {maximum}")
    return float(value)
