"""What the routes share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from slotdeck.engine.server.engine_client import EngineClient
from slotdeck.engine.server.keys import KeyRing
from slotdeck.engine.server.tokenizer_pool import TokenizerPool
from slotdeck.engine.settings import StartSettings
from slotdeck.engine.telemetry.recent_frames import RecentFrames
from slotdeck.engine.text.tokenizer import TextModel


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that this server serves."""

    id: str
    created: int
    """Unix time that ``/v1/models`` shows."""
    stop_token_ids: frozenset[int]
    """Tokens that end an answer, by the model's configuration and its generation configuration."""
    vocabulary: int
    """Number of token ids that the model has."""


@dataclass(slots=True)
class ServerContext:
    """Shared by the routes of the public API and the admin API. Used on the asyncio loop only."""

    engine: EngineClient
    text: TextModel
    model: ServedModel
    settings: StartSettings
    keys: KeyRing
    tokenizer_pool: TokenizerPool
    recent_frames: RecentFrames = field(default_factory=RecentFrames)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when streams of frames, which have no end of their own, must end."""
    force: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the stop does not wait for running requests."""
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer, by the configurations of model and tokenizer."""
        return self.model.stop_token_ids | self.text.end_token_ids

    def request_stop(self, *, force: bool = False) -> None:
        """Begin to drain. With ``force``, or at the second request, do not wait for running requests."""
        if force or self.stop_requested.is_set():
            self.force.set()
        self.stop_requested.set()
