"""Turns the token ids of one answer into text as they come.

The bytes of one character may be spread over several tokens. Such a character is held back until it is complete, so
that a stream never shows a part of one. All pieces joined are the text of all tokens.
"""

from __future__ import annotations

from slotdeck.engine.text.tokenizer import TextModel

_REPLACEMENT = "\ufffd"
_MAX_UNCERTAIN = 3
"""A character has at most 4 bytes, so at most 3 can be waiting for the next. Each of them decodes to U+FFFD."""


class Detokenizer:
    """The incremental detokenizer of one answer. It skips special tokens."""

    def __init__(self, text: TextModel) -> None:
        self._text = text
        # The tokens since the text last ended in a whole character, preceded by ``_num_context`` earlier ones. Some
        # decoders need the token before, for the space between two words.
        self._ids: list[int] = []
        self._num_context = 0
        self._shown = 0  # how many characters of the text of ``_ids`` were returned

    def push(self, token_id: int) -> str:
        """Take the next token. Returns the text that it completes, possibly none."""
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
        """The rest of the text, at the end of the answer. An incomplete character becomes U+FFFD."""
        new = self._text.decode(self._ids)[self._shown :]
        self._shown += len(new)
        return new
