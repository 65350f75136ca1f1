"""Errors about a model. Their messages say what to do."""

from __future__ import annotations


class ModelError(ValueError):
    """A model cannot be found or read, or does not fit into memory. The message is one paragraph for the admin.

    ``exit_code`` is the exit code of a process that ends because of it.
    """

    exit_code = 1


class UsageError(ModelError):
    """The admin asked for a model, a device or a type of weights that does not exist. Nothing is broken."""

    exit_code = 2


def human_bytes(count: float) -> str:
    """``98_000_000`` -> ``98 MB`` (decimal units, three significant figures)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
