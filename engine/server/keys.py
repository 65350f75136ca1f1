"""API keys, and the labels that name their users."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

from slotdeck.engine.settings import SettingsError, StartSettings, parse_api_key

MAX_GUESTS = 1024


class KeyRing:
    """Configured keys and guest keys. Keeps only digests, and compares all of them, so that timing tells nothing."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._digests = {label: _digest(key) for label, key in keys.items()}
        self._guests: dict[str, bytes] = {}

    @property
    def required(self) -> bool:
        """Whether requests without a known key are refused."""
        return bool(self._digests)

    def label(self, key: str) -> str | None:
        """The label of a configured key or guest key, None for an unknown one."""
        digest = _digest(key)
        found = None
        for label, known in (*self._digests.items(), *self._guests.items()):
            if hmac.compare_digest(digest, known):
                found = label
        return found

    def mint(self, labels: Iterable[str]) -> dict[str, str]:
        """Make a guest key for each label, valid until the engine ends. It replaces the former guest key of that label.

        Returns the keys by label. Raises ValueError if there would be more than MAX_GUESTS labels.
        """
        labels = list(labels)
        if len(self._guests.keys() | labels) > MAX_GUESTS:
            raise ValueError(f"at most {MAX_GUESTS} guest labels")
        keys = {label: secrets.token_urlsafe(24) for label in labels}
        self._guests |= {label: _digest(key) for label, key in keys.items()}
        return keys


def load_api_keys(settings: StartSettings) -> dict[str, str]:
    """Keys by label, from ``api_key`` and ``api_key_file``. Raises SettingsError that names the line at fault."""
    lines = [("api_key", value) for value in settings.api_key]
    if settings.api_key_file is not None:
        try:
            text = settings.api_key_file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise SettingsError(f"--api-key-file {settings.api_key_file} cannot be read: {reason}") from error
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip() and not line.lstrip().startswith("#"):
                lines.append((f"{settings.api_key_file}, line {number}", line))
    keys: dict[str, str] = {}
    for origin, line in lines:
        try:
            label, key = parse_api_key(line)
        except ValueError as error:
            raise SettingsError(f"{origin}: {error}") from error
        if label in keys:
            raise SettingsError(f"{origin}: the label {label!r} is given twice")
        if key in keys.values():
            raise SettingsError(f"{origin}: the key of {label!r} is given to another label as well")
        keys[label] = key
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
