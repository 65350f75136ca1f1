"""Finds stop strings in a stream of text.

The text ends exactly before the first match. Only a suffix that could still become a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Cuts a stream of text before the first stop string. Without stop strings it passes everything on."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.matched = False
        """True once a stop string was found. From then on no text comes out."""

    def push(self, text: str) -> str:
        """Take the next text. Returns the text that can be shown now.

        If several stop strings match, the one that is complete first ends the text. So the result does not depend on
        how the text was split into tokens.
        """
        if self.matched:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        ends = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            self.matched, self._held = True, ""
            earliest = min(end for end, _ in ends)
            return text[: min(start for end, start in ends if end == earliest)]
        keep = max(self._overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text that was held back, at the end of an answer that no stop string ended."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
        for length in range(min(len(text), len(stop) - 1), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0
