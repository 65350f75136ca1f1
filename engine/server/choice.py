"""One choice of an answer: turns its tokens into text, ends it before a stop string, and adds log-probabilities."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slotdeck.engine.core.step import TokenLogprobs
from slotdeck.engine.text.detokenizer import Detokenizer
from slotdeck.engine.text.stop import StopMatcher
from slotdeck.engine.text.tokenizer import TextModel


@dataclass(frozen=True, slots=True)
class Delta:
    """The next text of one choice. The last delta has a ``finish_reason``."""

    index: int
    """Number of the choice, from 0."""
    text: str
    logprobs: tuple[dict[str, Any], ...] = ()
    """One entry in OpenAI's shape for each token whose text begins in ``text``. Empty unless asked for."""
    finish_reason: str | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.logprobs or self.finish_reason)


class Choice:
    """Choice number ``index`` of a request.

    Stop strings count only in the text of the tokens after the first ``min_tokens``. If one of ``stop_token_ids`` ends
    the choice, that token adds no text.
    """

    def __init__(
        self, index: int, text: TextModel, stops: Sequence[str], min_tokens: int, stop_token_ids: frozenset[int]
    ) -> None:
        self.index = index
        self.num_tokens = 0
        """Output tokens read, including those of a stop string and the ending token."""
        self.ended = False
        self._text = text
        self._min_tokens = min_tokens
        self._stop_token_ids = stop_token_ids
        self._detokenizer = Detokenizer(text)
        self._stop = StopMatcher(stops)
        self._length = 0  # characters of the text of all tokens
        self._shown = 0  # how many of them were returned
        self._held: deque[tuple[int, int, TokenLogprobs]] = deque()  # start of its text, token, log-probabilities

    def read(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], finish_reason: str | None) -> Delta:
        """Take the next tokens. ``finish_reason`` is ``stop`` or ``length`` with the last of them, else None.

        The delta has a finish reason as soon as a stop string is complete. No more tokens may be read after that.
        """
        text = ""
        for position, token_id in enumerate(token_ids):
            self.num_tokens += 1
            if finish_reason == "stop" and position == len(token_ids) - 1 and token_id in self._stop_token_ids:
                break
            if logprobs:
                self._held.append((self._length, token_id, logprobs[position]))
            text += self._push(self._detokenizer.push(token_id))
            if self._stop.matched:
                return self._delta(text, "stop")
        if finish_reason is not None:
            text += self._push(self._detokenizer.flush())
            if self._stop.matched:
                return self._delta(text, "stop")
            text += self._stop.flush()
        return self._delta(text, finish_reason)

    def _push(self, text: str) -> str:
        self._length += len(text)
        return text if self.num_tokens <= self._min_tokens else self._stop.push(text)

    def _delta(self, text: str, finish_reason: str | None) -> Delta:
        self._shown += len(text)
        self.ended = finish_reason is not None
        whole = self.ended and not self._stop.matched
        entries = []
        while self._held and (whole or self._held[0][0] < self._shown):
            _, token_id, found = self._held.popleft()
            top = [self._entry(token, logprob) for token, logprob in found.top]
            entries.append(self._entry(token_id, found.logprob) | {"top_logprobs": top})
        return Delta(self.index, text, tuple(entries), finish_reason)

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        exact = self._text.token_bytes(token_id)
        return {"token": exact.decode("utf-8", errors="replace"), "bytes": list(exact), "logprob": logprob}
