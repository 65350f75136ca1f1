"""Reads sizes and durations as people write them: ``2GiB``, ``500MB``, ``150ms``."""

from __future__ import annotations

import re
from typing import Any

BYTE_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def parse_bytes(text: str) -> int | None:
    """``"1.5GiB"`` -> 1610612736; ``None`` unless it is a positive number followed by a unit of BYTE_UNITS."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if found is None or found[2] not in BYTE_UNITS:
        return None
    return int(float(found[1]) * BYTE_UNITS[found[2]]) or None


def to_bytes(value: Any) -> Any:
    """Turn text with a unit into a number of bytes. Anything else passes unchanged, for pydantic to judge."""
    size = parse_bytes(value) if isinstance(value, str) else None
    return value if size is None else size


def to_milliseconds(value: Any) -> Any:
    """Turn ``150ms``, ``0.15s`` or ``150`` into milliseconds. Anything else passes unchanged, for pydantic to judge."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    try:
        if text.endswith("ms"):
            return round(float(text[:-2]))
        return round(1000 * float(text[:-1])) if text.endswith("s") else int(text)
    except ValueError:
        return value
