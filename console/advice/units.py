"""Numbers as short text: seconds, bytes and counts that are not rounded silently."""

from __future__ import annotations

from math import floor


def time_text(seconds: float | None) -> str:
    """``420 ms``, ``4.2 s``, ``3 min``; ``–`` for ``None``."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 119.95 else f"{seconds / 60:.0f} min"


def bytes_text(count: float | None) -> str:
    """``16.4 GB``, ``144 kB``: powers of 1000, three digits; ``–`` for ``None``."""
    if count is None:
        return "–"
    sign, count = ("-", -count) if count < 0 else ("", count)
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{sign}{count:.3g} {unit}"
        count /= 1000
    return f"{sign}{count:.4g} TB"


def about(value: float) -> str:
    """A number that is shown rounded together with its exact value: ``5``, ``≈5 (4.97)``, ``≈5 (4.999)``."""
    if value == int(value):
        return str(int(value))
    shown = f"{value:.2f}"
    for digits in range(3, 7):
        if float(shown) != int(float(shown)):
            break
        shown = f"{value:.{digits}f}"
    return f"≈{floor(value + 0.5)} ({shown})"
