"""The speed card: what one model costs on one machine, as measured there once (``slotdeck bench --card``).

A file for each model, type of weights and KV, device and number of threads, in the state folder.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from slotdeck.console.advice.step_model import StepModel
from slotdeck.console.advice.traffic import Edge
from slotdeck.engine.paths import state_folder
from slotdeck.engine.telemetry.frame import EngineInfo

CARD_VERSION = 1


class SpeedCardError(RuntimeError):
    """There is no card for this engine, or it cannot be read. The message says what to do."""


class Limit(BaseModel):
    """Something the machine has only so much of, per second."""

    model_config = ConfigDict(frozen=True)

    used: float
    most: float
    """As measured in the same run."""

    @property
    def share(self) -> float:
        return self.used / self.most if self.most > 0 else 0.0


class Wording(BaseModel):
    """How many tokens words become: a prompt of one message is ``base`` + words x ``per_word``, and each further
    message brings ``per_message`` with it."""

    model_config = ConfigDict(frozen=True)

    base: float
    per_word: float
    per_message: float

    def words(self, tokens: int, *, fresh: bool) -> int:
        """Words of a message that adds so many tokens to the prompt."""
        return max(1, round((tokens - (self.base if fresh else self.per_message)) / self.per_word))


class SpeedCard(BaseModel):
    """What was measured. Rates are tokens per second, times seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int = CARD_VERSION
    measured: float
    """Wall clock."""
    machine: dict[str, str | int | float | None] = {}
    others: float = 0.0
    """Cores that other programs kept busy while the served steps were measured."""
    model: str
    weights: str
    kv_dtype: str
    device: str
    threads: int
    kernels: str
    weight_bytes: int
    kv_bytes_per_token: int
    prefill_chunk: int
    """Tokens in a step of the prefill that was measured."""
    prefill_per_second: float
    """One prompt alone, nothing around it."""
    decode_per_second: float
    """One stream alone, nothing around it."""
    memory: Limit
    """Bytes per second that a single stream's decoding reads, of those that memory gives."""
    arithmetic: Limit
    """Operations per second of prefill, of those that one large product reaches."""
    overhead: float
    """Part of the time from step to step of one served stream in which the model computes nothing: 0 to 1."""
    kv_copy_bytes_per_second: float
    """To host memory, one way."""
    alone: StepModel
    """Steps with nothing around them."""
    served: StepModel
    """Whole periods of steps under load, from one step's end to the next, with server and clients on this machine."""
    edge: Edge
    wording: Wording

    @property
    def key(self) -> str:
        return card_key(self.model, self.weights, self.kv_dtype, self.device, self.threads)


def card_key(model: str, weights: str, kv_dtype: str, device: str, threads: int) -> str:
    """The name of the file, without ending."""
    text = f"{model}-{weights}-kv-{kv_dtype}-{device}-{threads}t"
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


def cards_folder() -> Path:
    return state_folder() / "speed-cards"


def save_card(card: SpeedCard) -> Path:
    """Write it, in place of one measured before. Raises OSError."""
    folder = cards_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{card.key}.json"
    path.write_text(card.model_dump_json(indent=2) + "\n", "utf-8")
    return path


def read_card(path: Path) -> SpeedCard:
    """Raises SpeedCardError."""
    try:
        card = SpeedCard.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SpeedCardError(f"{path}: {error.strerror or error}") from error
    except ValidationError as error:
        raise SpeedCardError(f"{path} is no speed card; measure one with `slotdeck bench --card`") from error
    if card.version != CARD_VERSION:
        raise SpeedCardError(f"{path} is of another version of Slotdeck; measure anew with `slotdeck bench --card`")
    return card


def find_card(engine: EngineInfo) -> SpeedCard:
    """The card of an engine as it runs. Raises SpeedCardError."""
    parts = (engine.model, engine.weights, engine.kv_dtype, engine.device, engine.threads)
    model, weights, kv_dtype, device, threads = parts
    if model is None or weights is None or kv_dtype is None or device is None or threads is None:
        raise SpeedCardError("this server does not say what it computes with, so there is no speed card for it")
    path = cards_folder() / f"{card_key(model, weights, kv_dtype, device, threads)}.json"
    if not path.is_file():
        raise SpeedCardError(
            f"the speed of {model} ({weights}, KV {kv_dtype}, {device}, {threads} threads) was not measured yet: "
            "run `slotdeck bench --card`"
        )
    return read_card(path)


def newest_card() -> SpeedCard:
    """The card that was measured last. Raises SpeedCardError when there is none."""
    cards = []
    for path in cards_folder().glob("*.json"):
        try:
            cards.append(read_card(path))
        except SpeedCardError:
            continue
    if not cards:
        raise SpeedCardError("no speed was measured yet: run `slotdeck bench --card`")
    return max(cards, key=lambda card: card.measured)


BUSY = 0.25
"""Cores that others may take before a measurement says more about them than about the engine."""


def disturbed(card: SpeedCard) -> str | None:
    """A sentence when the machine was not quiet."""
    if card.others <= BUSY:
        return None
    return (
        f"other programs kept {card.others:.1f} cores busy while the card was measured: it predicts a machine as busy "
        "as that one; measure again when it is quiet"
    )


def what_binds(card: SpeedCard) -> list[str]:
    """Sentences for people: which limit holds decode and prefill back, and how near it they are."""
    decode = (
        f"decode: one stream reads {card.memory.used / 1e9:.1f} of the {card.memory.most / 1e9:.1f} GB/s that memory "
        f"gives ({card.memory.share:.0%}); {card.overhead:.1%} of a served step is not the model's"
    )
    if card.overhead > 0.5:
        decode += ": overhead binds, a faster machine would help little"
    elif card.memory.share >= 0.5:
        decode += ": memory bandwidth binds, so a second stream in the same step costs little"
    else:
        decode += ": arithmetic binds before memory does, so each further stream costs its share"
    prefill = (
        f"prefill: {card.arithmetic.used / 1e9:.0f} of {card.arithmetic.most / 1e9:.0f} billion operations per second "
        f"({card.arithmetic.share:.0%} of one large product)"
    )
    prefill += (
        ": arithmetic binds, more cores would help"
        if card.arithmetic.share >= 0.5
        else ": attention and small chunks take the rest"
    )
    return [decode, prefill]
