"""Every setting of Slotdeck, in one table.

Each setting is declared once, as a field: in :class:`LiveFields` if it can change while requests run, else in
:class:`StartSettings`. :data:`SETTINGS` lists all of them. From that table come the command line flags, the
``SLOTDECK_*`` variables, the TOML keys, the admin API and the console's controls.

``configuration.py`` reads their values. This module does no I/O and does not import torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo

from slotdeck.engine.paths import ENVIRONMENT_PREFIX
from slotdeck.engine.units import parse_bytes, to_bytes, to_milliseconds

BLOCK_SIZE = 16
"""Tokens in one block of the KV pool."""
GPU_MEMORY_SHARE = 0.92
"""Default share of a GPU's memory that weights, KV pool and other programs may use together."""
MAX_KV_TOKENS = 1 << 30


class SettingsError(ValueError):
    """A setting is missing, unknown or out of range. The message says which one and what to do."""


@dataclass(frozen=True)
class Step:
    """How far one press of + or - moves a number: to the next multiple of ``size``."""

    size: int = 1
    large: int | None = None
    """Size of the steps from ``large_from`` on; ``None``: the same everywhere."""
    large_from: int = 0
    doubles: bool = False
    """Move to the next power of two instead."""

    def move(self, value: int, direction: int) -> int:
        """The value one step above (``direction`` 1) or below (-1) ``value``; it may leave the setting's range."""
        if self.doubles:
            power = 1 << (max(value, 1).bit_length() - 1)
            down = power // 2 if power == value else power
            return power * 2 if direction > 0 else down
        size = self.large if self.large is not None and value + direction >= self.large_from else self.size
        return (value // size + 1) * size if direction > 0 else (-(-value // size) - 1) * size


def _setting(
    default: Any, help: str, *, unit: str = "", title: str | None = None, step: Step | None = None, **bounds: Any
) -> Any:
    """A pydantic field that also holds what the command line and the console show.

    ``title`` is the short word on screens (default: the name), ``step`` the distance of one press of + or -,
    ``bounds`` are pydantic's ``ge`` and ``le``.
    """
    shown = {"unit": unit, "title": title, "step": step}
    return Field(default, description=help, json_schema_extra=shown, **bounds)  # type: ignore[arg-type]


def _split_list(value: Any) -> Any:
    """``a,b`` from an environment variable becomes ``["a", "b"]``."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def parse_api_key(text: str) -> tuple[str, str]:
    """``laptop=s3cret`` as label and key. Raises ValueError when it is not written so."""
    label, separator, key = (part.strip() for part in text.partition("="))
    if not separator or not label or not key:
        raise ValueError("an API key is written LABEL=KEY, for example laptop=s3cret")
    return label, key


def _check_api_keys(values: list[str]) -> list[str]:
    labels: set[str] = set()
    for value in values:
        label, _ = parse_api_key(value)
        if "," in value:
            raise ValueError(f"the key of {label!r} holds a comma, which separates keys in SLOTDECK_API_KEY")
        if label in labels:
            raise ValueError(f"the label {label!r} is given twice")
        labels.add(label)
    return values


def _check_pool_size(value: Any) -> Any:
    """Tokens as int, a share as float, bytes as text. Text that is a number becomes one."""
    if value is None:
        return None
    text = str(value).strip()
    if re.fullmatch(r"[+-]?\d+", text):
        if not BLOCK_SIZE <= int(text) <= MAX_KV_TOKENS:
            raise ValueError(f"a number of tokens must be between {BLOCK_SIZE} and {MAX_KV_TOKENS}")
        return int(text)
    if re.fullmatch(r"[+-]?\d*\.\d+", text):
        if not 0 < float(text) < 1:
            raise ValueError("a share of the free memory must be above 0 and below 1, for example 0.5")
        return float(text)
    if parse_bytes(text) is None:
        raise ValueError("give tokens (8192), bytes with their unit (2GiB, 500MB) or a share of the free memory (0.5)")
    return text


def _check_device(value: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is None:
        raise ValueError("give auto, cpu, cuda or cuda:N")
    return value


StringList = Annotated[list[str], BeforeValidator(_split_list)]
PoolSize = Annotated[int | float | str | None, BeforeValidator(_check_pool_size)]
"""Size of the KV pool: int is tokens, float a share of the memory left after the weights, str bytes with a unit."""

# These three can be left open at start, and the engine then chooses them for the model and the machine. LiveFields and
# LiveSettings give them different types, so their text, unit and range stand here, once for both.
Context = Annotated[
    int,
    _setting(
        ..., "maximum tokens of one request, prompt and output together", unit="tokens", title="ctx",
        step=Step(256, large=1024, large_from=4096), ge=64, le=1 << 20,
    ),
]  # fmt: skip
Budget = Annotated[
    int,
    _setting(
        ..., "prefill tokens in one step, in addition to the running decodes", unit="tokens", step=Step(doubles=True),
        ge=1, le=8192,
    ),
]  # fmt: skip
KvTokens = Annotated[
    int,
    _setting(
        ..., "size of the KV pool; default: slots x context", unit="tokens", title="pool",
        step=Step(256, large=1024, large_from=4096), ge=BLOCK_SIZE, le=MAX_KV_TOKENS,
    ),
]  # fmt: skip


class LiveFields(BaseModel):
    """The settings that can change while requests run, as they are given at start.

    ``None``: the engine chooses a value for the model and the machine.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    slots: int = _setting(4, "requests that run at the same time", unit="requests", ge=1, le=256)
    context: Context | None = None
    queue: int = _setting(
        16, "requests that may wait; further ones are refused with 503", unit="requests", ge=0, le=4096
    )
    queue_share: int = _setting(
        50, "percentage of the queue that one user may fill, so that others still get in", unit="percent",
        title="share", step=Step(10), ge=1, le=100,
    )  # fmt: skip
    budget: Budget | None = None
    kv_tokens: PoolSize = None
    mode: Literal["serial", "static", "continuous"] = _setting(
        "continuous", "how requests are batched: one at a time, whole batches, or step by step"
    )
    preemption: Literal["recompute", "swap"] = _setting(
        "recompute", "what happens to the KV of a preempted request: computed again, or copied to host memory and back"
    )
    swap_space: int = _setting(
        1 << 30,
        "maximum host memory for swapped KV; beyond it, preemption recomputes",
        unit="bytes",
        step=Step(64 << 20, large=512 << 20, large_from=512 << 20),
        ge=0,
        le=1 << 40,
    )
    prefix_cache: bool = _setting(True, "keep the KV of prompts and reuse it for prompts that begin the same way")
    prefix_sharing: bool = _setting(
        False, "let users reuse each other's prefixes (a short TTFT then reveals what others asked)"
    )
    itl_target: int = _setting(
        0, "choose the budget so that streams keep this inter-token latency; 0: off", unit="milliseconds",
        step=Step(10, large=80, large_from=80), ge=0, le=60_000,
    )  # fmt: skip


class LiveSettings(LiveFields):
    """The live settings in force. Immutable: a change makes a new object."""

    context: Context = 2048
    budget: Budget = 64
    kv_tokens: KvTokens = 8192


class StartSettings(LiveFields):
    """Everything that can be set at start: the live settings, and those that are read only then."""

    model: str = _setting("smollm2", "smollm2 (embedded), a directory with config.json, or a .gguf file")
    host: str = _setting("127.0.0.1", "address that the API listens on; any other than loopback needs API keys")
    port: int = _setting(8000, "port of the API; 0 takes a free one", ge=0, le=65535)
    weights: Literal["auto", "int8", "int4", "fp32", "bf16"] = _setting(
        "auto",
        "type of the weights; auto: the fastest on this machine that answers as well as fp32; int4 takes the least "
        "memory and costs quality unless the model comes in 4 bits",
    )
    kv_dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = _setting(
        "auto",
        "type of the KV pool; auto: that of the weights, bf16 with int8 weights; int8 takes the least memory and costs "
        "a little quality",
    )
    device: Annotated[str, AfterValidator(_check_device)] = _setting("auto", "auto, cpu, cuda or cuda:N")
    threads: int | None = _setting(None, "CPU threads of the engine; default: physical cores", ge=1, le=512)
    api_key: Annotated[StringList, AfterValidator(_check_api_keys)] = _setting(
        [], "LABEL=KEY, repeatable; if there is a key, every route but /health requires one"
    )
    api_key_file: Path | None = _setting(None, "file with one LABEL=KEY per line, read at start")
    allowed_host: StringList = _setting([], "another Host header that clients may send, repeatable")
    drain_timeout: float = _setting(
        30.0, "how long a stop waits for the running requests", unit="seconds", ge=0, le=3600
    )
    heartbeat: float = _setting(
        10.0, "send a comment line to a stream that got no token for this long", unit="seconds", ge=0.1, le=3600
    )
    step_timeout: float = _setting(
        30.0, "a step that takes longer counts as stuck: /health answers 503", unit="seconds", ge=1, le=3600
    )
    max_body: Annotated[int, BeforeValidator(to_bytes)] = _setting(
        4 << 20, "largest request body", unit="bytes", ge=1024, le=1 << 30
    )
    history_days: float = _setting(
        14.0,
        "how long the history is kept (numbers and events, no text of prompts); 0: none",
        unit="days",
        ge=0,
        le=3660,
    )
    history_size: int = _setting(
        500, "size of the history above which its oldest part is deleted", unit="MB", ge=10, le=1_000_000
    )
    socket: Path | None = _setting(None, "admin socket; default: engine.sock in the runtime folder")

    @field_validator("swap_space", mode="before")
    @classmethod
    def _read_bytes(cls, value: Any) -> Any:
        return to_bytes(value)

    @field_validator("itl_target", mode="before")
    @classmethod
    def _read_milliseconds(cls, value: Any) -> Any:
        return to_milliseconds(value)


@dataclass(frozen=True)
class Setting:
    """One row of the table of settings, as the command line, the admin API and the console read it."""

    name: str
    """Also the TOML key and the name in the admin API."""
    title: str
    """A short word for screens."""
    help: str
    unit: str
    live: bool
    """It can change while requests run."""
    step: Step
    """How far one press of + or - moves it, if it is a number."""
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    default: Any
    """What applies when nobody sets it; ``None``: chosen for the model and the machine."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def _row(name: str, field: FieldInfo) -> Setting:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    bounds = {type(item).__name__.lower(): item for item in field.metadata}
    choices: tuple[str, ...] = ()
    if field.annotation is bool:
        choices = ("on", "off")
    elif "Literal" in str(field.annotation):
        choices = getattr(field.annotation, "__args__", ())
    return Setting(
        name=name,
        title=str(extra.get("title") or name),
        help=field.description or "",
        unit=str(extra.get("unit") or ""),
        live=name in LiveFields.model_fields,
        step=extra.get("step") or Step(),  # type: ignore[arg-type]
        minimum=getattr(bounds.get("ge"), "ge", None),
        maximum=getattr(bounds.get("le"), "le", None),
        choices=tuple(choices),
        default=field.default,
    )


SETTINGS: dict[str, Setting] = {
    name: _row(name, LiveSettings.model_fields.get(name, field)) for name, field in StartSettings.model_fields.items()
}
"""Every setting by name, in the order in which help and documents list them."""
