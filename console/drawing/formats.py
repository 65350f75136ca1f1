"""Numbers as the screens write them: short, of steady width, and ``–`` if unknown."""

from __future__ import annotations

from slotdeck.console.drawing.cells import UNKNOWN


def whole(value: float | None) -> str:
    """All digits, for settings and limits."""
    return UNKNOWN if value is None else f"{value:.0f}"


def count(value: float | None) -> str:
    """At most four cells: ``812``, ``2.1k``, ``61k``, ``1.2M``."""
    if value is None:
        return UNKNOWN
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 999,500 rounds to 1000k, so a suffix begins a little before its size.
        if value >= size * 0.9995:
            return f"{value / size:.1f}{suffix}" if value < size * 9.95 else f"{value / size:.0f}{suffix}"
    return f"{value:.0f}"


def tokens(value: float) -> str:
    """Tokens in a calculation, with one more digit than :func:`count`: 16,384 is ``16.4k`` and not ``16k``."""
    return f"{value / 1000:.1f}k" if 9950 <= value < 99_950 else count(value)


def rate(value: float | None) -> str:
    """A rate per second: ``0``, ``3.4``, ``61``, ``2.1k``."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}" if 0 < value < 9.95 else count(value)


def seconds(value: float | None) -> str:
    """At most five cells: ``0.42s``, ``12.3s``, ``123s``, ``12m``, ``3h``."""
    if value is None:
        return UNKNOWN
    if value < 9.995:
        return f"{value:.2f}s"
    if value < 99.95:
        return f"{value:.1f}s"
    if value < 999.5:
        return f"{value:.0f}s"
    return f"{value / 60:.0f}m" if value < 5970 else f"{value / 3600:.0f}h"


def gap(value: float | None) -> str:
    """A gap between tokens: ``88ms`` below a second, else as :func:`seconds`."""
    if value is None:
        return UNKNOWN
    if value < 0.00995:
        return f"{value * 1000:.1f}ms"
    return f"{value * 1000:.0f}ms" if value < 0.9995 else seconds(value)


def about(value: float) -> str:
    """A rough duration: ``about 12s``."""
    return "under 1s" if value < 1 else f"about {value:.0f}s" if value < 100 else f"about {value / 60:.0f}m"


def clock(value: float | None) -> str:
    """A duration as people read uptimes: ``02:13``, ``3:02:13``, ``4d 3h``."""
    if value is None:
        return UNKNOWN
    total = int(value)
    if total >= 86400:
        return f"{total // 86400}d {total % 86400 // 3600}h"
    hours, rest = divmod(total, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def gibibytes(value: float | None) -> str:
    """Memory in GiB with one decimal, without the unit."""
    return UNKNOWN if value is None else f"{value / 2**30:.1f}"


def byte_count(value: float | None) -> str:
    """Bytes that are moved, in powers of 1000: ``0``, ``640 B``, ``1.2 MB``."""
    if value is None:
        return UNKNOWN
    if value < 0.5:
        return "0"
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size * 0.9995:
            return f"{value / size:.1f} {unit}" if value < size * 9.95 else f"{value / size:.0f} {unit}"
    return f"{value:.0f} B"


def binary_bytes(value: float) -> str:
    """Reserved memory, in powers of 1024: ``0``, ``512 MiB``, ``1.5 GiB``."""
    for size, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.0f}"
