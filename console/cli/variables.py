"""Finds ``SLOTDECK_*`` environment variables that nothing reads, so that a mistyped one is reported."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from slotdeck.console.cli.quick_attach import HARMLESS
from slotdeck.engine.paths import CONFIG_VARIABLE, ENVIRONMENT_PREFIX
from slotdeck.engine.settings import SETTINGS

KNOWN = frozenset(setting.variable for setting in SETTINGS.values()) | HARMLESS | {CONFIG_VARIABLE}
TESTS_PREFIX = ENVIRONMENT_PREFIX + "TEST_"
"""Prefix of variables that only the tests read."""


def unread_variables(environment: Iterable[str]) -> str | None:
    """A sentence with the variables that nothing reads and the closest known names; ``None`` if all are read."""
    mine = (name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and not name.startswith(TESTS_PREFIX))
    unread = [_with_nearest(name) for name in sorted(mine) if name not in KNOWN]
    if not unread:
        return None
    return f"ignored because there is no such setting: {', '.join(unread)}; `slotdeck config show` lists all settings"


def _with_nearest(name: str) -> str:
    """``SLOTDECK_SLOT (did you mean SLOTDECK_SLOTS?)``. The common prefix is ignored when names are compared."""
    ends = {known.removeprefix(ENVIRONMENT_PREFIX): known for known in KNOWN}
    nearest = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX).upper(), ends, 1)
    return f"{name} (did you mean {ends[nearest[0]]}?)" if nearest else name
