"""Stop strings over a stream of text.

Only a suffix that could still become a stop string is held back; the text ends exactly before the first match.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Feed text as it comes; with no stop strings it passes everything on."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.matched = False
        """True once a stop string was seen; from then on nothing comes out."""

    def push(self, text: str) -> str:
        """Text that may be shown.

        Of several stop strings the one that is complete first ends the text, so that the result does not depend
        on how the text was cut into tokens.
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
        """What was held back, at the end of an answer that no stop string ended."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest suffix of ``text`` that begins ``stop``."""
        for length in range(min(len(text), len(stop) - 1), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0
