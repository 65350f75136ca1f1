"""The speed that `slotdeck bench --card` measured, for plans: one stream alone, reading and writing apart."""

from __future__ import annotations

from slotdeck.console.advice.calibration import SpeedCard, SpeedCardError, find_card, newest_card
from slotdeck.console.advice.capacity import ModelFacts, Speed
from slotdeck.engine.telemetry.frame import EngineInfo


def speed_of_engine(engine: EngineInfo) -> Speed | None:
    """Of an engine as it runs; ``None`` if it was not measured. Reads a file."""
    card = card_of_engine(engine)
    return _speed(card) if isinstance(card, SpeedCard) else None


def card_of_engine(engine: EngineInfo) -> SpeedCard | str:
    """All that was measured of an engine as it runs, or what to do to have it. Reads a file."""
    try:
        return find_card(engine)
    except SpeedCardError as error:
        return str(error)


def speed_of_model(model: ModelFacts, kv_dtype: str) -> Speed | None:
    """Of a model that does not run, if what was measured last here was the same with the same types."""
    try:
        card = newest_card()
    except SpeedCardError:
        return None
    same = (card.model, card.weights, card.kv_dtype) == (model.name, model.weights, kv_dtype)
    return _speed(card) if same else None


def _speed(card: SpeedCard) -> Speed:
    return Speed(prefill=card.prefill_per_second, decode=card.decode_per_second)
