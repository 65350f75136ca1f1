"""What every route needs, made once per engine process."""

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
    """The one model behind the API."""

    id: str
    created: int
    """Unix time shown in ``/v1/models``."""
    stop_token_ids: frozenset[int]
    """Every id that ends an answer: union of the model's and the generation configuration's."""
    vocabulary: int
    """Number of the model's token ids."""


@dataclass(slots=True)
class ServerContext:
    """Shared by the routes of the public and the admin API; lives on the asyncio loop."""

    engine: EngineClient
    text: TextModel
    model: ServedModel
    settings: StartSettings
    keys: KeyRing
    tokenizer_pool: TokenizerPool
    recent_frames: RecentFrames = field(default_factory=RecentFrames)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when streams that have no end of their own must end."""
    force: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a stop must not wait for running requests."""
    stop_asked: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Every token that ends an answer, by the model's and by the tokenizer's configuration."""
        return self.model.stop_token_ids | self.text.end_token_ids

    def ask_stop(self, *, force: bool = False) -> None:
        """Begin draining; with ``force``, or when asked a second time, don't wait for what runs."""
        if force or self.stop_asked.is_set():
            self.force.set()
        self.stop_asked.set()
