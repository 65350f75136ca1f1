"""What can be wrong with a model, told so that the reader knows what to do."""

from __future__ import annotations


class ModelError(ValueError):
    """A model cannot be found, read or held in memory. The message is one paragraph for the admin.

    ``exit_code`` is that of a process that ends for it.
    """

    exit_code = 1


class UsageError(ModelError):
    """The admin asked for what is not there: a model, a device, a type of weights. Nothing is broken."""

    exit_code = 2


def human_bytes(count: float) -> str:
    """``98_000_000`` -> ``98 MB`` (decimal units, three significant figures)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
