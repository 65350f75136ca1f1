"""Token ids of one answer to text, as they come.

A character whose bytes are spread over several tokens is held back until it is complete, so that a stream never
shows half of one, and the joined stream is the text of all tokens.
"""

from __future__ import annotations

from slotdeck.engine.text.tokenizer import TextModel

_REPLACEMENT = "\ufffd"
_MAX_UNCERTAIN = 3
"""A character has at most 4 bytes, so at most 3 can wait for the next; each decodes to U+FFFD meanwhile."""


class Detokenizer:
    """Incremental detokeniser of one answer; special tokens are skipped."""

    def __init__(self, text: TextModel) -> None:
        self._text = text
        # The tokens since text last ended in a whole character, after those before it: some decoders treat a
        # token by its neighbour (spaces between words).
        self._ids: list[int] = []
        self._num_context = 0
        self._shown = 0  # characters of the text of ``_ids`` that were given out

    def push(self, token_id: int) -> str:
        """Text that became certain with this token, possibly empty."""
        self._ids.append(token_id)
        text = self._text.decode(self._ids)
        uncertain = min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_UNCERTAIN)
        new = text[self._shown : len(text) - uncertain]
        self._shown += len(new)
        if new and not uncertain:
            self._ids = self._ids[self._num_context :]
            self._num_context = len(self._ids)
            self._shown = len(self._text.decode(self._ids))
        return new

    def flush(self) -> str:
        """What is still held, at the end: an incomplete character becomes U+FFFD."""
        new = self._text.decode(self._ids)[self._shown :]
        self._shown += len(new)
        return new
