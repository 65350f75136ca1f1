"""Every setting of Slotdeck, in one table.

A setting is declared once, as a field of :class:`LiveSettings` (changeable while people stream) or
:class:`StartSettings` (read at start). From these fields come the command line flags, the ``SLOTDECK_*``
variables, the TOML keys, the admin API and the console's knobs, so that a word means the same everywhere.
Nothing but settings may enter this room: no I/O except reading the configuration file, no torch.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from slotdeck.engine.paths import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, config_file

BLOCK_SIZE = 16
"""Tokens in one block of the KV pool."""
GPU_MEMORY_SHARE = 0.92
"""Default share of a GPU's memory that weights, KV pool and other programs may use together."""


class SettingsError(ValueError):
    """A setting is missing, unknown or out of range. The message says which one and what to do."""


def _setting(default: Any, help: str, *, unit: str = "", key: str | None = None, **bounds: Any) -> Any:
    """A pydantic field with what the command line and the console need beside it: unit and key."""
    return Field(default, description=help, json_schema_extra={"unit": unit, "key": key}, **bounds)


Slots = Annotated[int, _setting(..., "requests that run at the same time", unit="requests", key="s", ge=1, le=256)]
Context = Annotated[
    int,
    _setting(..., "most tokens (prompt + output) one request may use", unit="tokens", key="c", ge=64, le=1 << 20),
]
Queue = Annotated[
    int,
    _setting(..., "requests that may wait; more are refused with 503", unit="requests", key="d", ge=0, le=4096),
]
Budget = Annotated[
    int,
    _setting(..., "prefill tokens in one step, beside the running decodes", unit="tokens", key="b", ge=1, le=8192),
]


Mode = Annotated[
    Literal["serial", "static", "continuous"],
    _setting(..., "batching: one at a time, whole batches, or per step", key="m"),
]
KvTokens = Annotated[
    int,
    _setting(..., "size of the KV pool; default: slots x context", unit="tokens", key="p", ge=16, le=1 << 30),
]
Preemption = Annotated[
    Literal["recompute", "swap"],
    _setting(..., "what a preempted request's KV becomes: computed again, or copied to host memory and back"),
]
SwapSpace = Annotated[
    int, _setting(..., "most host memory for KV swap; beyond it preemption recomputes", unit="bytes", ge=0, le=1 << 40)
]
PrefixCache = Annotated[bool, _setting(..., "keep the KV of prompts and reuse it for the same beginning")]
PrefixSharing = Annotated[bool, _setting(..., "let users reuse each other's prefixes (TTFT then tells who asked)")]
ItlTarget = Annotated[
    int,
    _setting(..., "choose the budget so that streams keep this ITL; 0: off", unit="milliseconds", ge=0, le=60_000),
]


class LiveSettings(BaseModel):
    """Settings that change between two steps while requests run. Immutable: a change makes a new one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slots: Slots = 4
    context: Context = 2048
    queue: Queue = 16
    budget: Budget = 64
    kv_tokens: KvTokens = 8192
    mode: Mode = "continuous"
    preemption: Preemption = "recompute"
    swap_space: SwapSpace = 1 << 30
    prefix_cache: PrefixCache = True
    prefix_sharing: PrefixSharing = False
    itl_target: ItlTarget = 0


def _split_list(value: Any) -> Any:
    """``a,b`` from an environment variable becomes ``["a", "b"]``."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _milliseconds(value: Any) -> Any:
    """``150ms``, ``0.15s`` or a plain number of milliseconds."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    try:
        if text.endswith("ms"):
            return round(float(text[:-2]))
        return round(1000 * float(text[:-1])) if text.endswith("s") else int(text)
    except ValueError:
        return value


def _check_api_keys(values: list[str]) -> list[str]:
    labels: set[str] = set()
    for value in values:
        label, separator, key = value.partition("=")
        if not separator or not label.strip() or not key.strip():
            raise ValueError("an API key is written LABEL=KEY, for example laptop=s3cret")
        if "," in value:
            raise ValueError(f"the key of {label!r} holds a comma, which separates keys in SLOTDECK_API_KEY")
        if label in labels:
            raise ValueError(f"the label {label!r} is given twice")
        labels.add(label)
    return values


StringList = Annotated[list[str], BeforeValidator(_split_list)]


MAX_KV_TOKENS = 1 << 30
BYTE_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _check_kv_tokens(value: Any) -> Any:
    """Tokens as int, a share as float, bytes as text; text that is a number becomes one."""
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
    if bytes_in(text) is None:
        raise ValueError("give tokens (8192), bytes with their unit (2GiB, 500MB) or a share of the free memory (0.5)")
    return text


def bytes_in(text: str) -> int | None:
    """``"1.5GiB"`` -> 1610612736; ``None`` for what is no positive number with a unit of BYTE_UNITS."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if found is None or found[2] not in BYTE_UNITS:
        return None
    return int(float(found[1]) * BYTE_UNITS[found[2]]) or None


def _bytes(value: Any) -> Any:
    """``1GiB`` and ``500MB`` become bytes; a plain number is bytes already."""
    size = bytes_in(value) if isinstance(value, str) else None
    return value if size is None else size


def _check_device(value: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is None:
        raise ValueError("give auto, cpu, cuda or cuda:N")
    return value


KVTokens = Annotated[int | float | str | None, BeforeValidator(_check_kv_tokens)]
"""Size of the KV pool: int is tokens, float a share of the memory left after the weights, str bytes with a unit."""


class StartSettings(BaseModel):
    """Settings read once at start. ``None`` means: chosen for the model and the machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = _setting("smollm2", "smollm2 (embedded), a directory with config.json, or a .gguf file")
    host: str = _setting("127.0.0.1", "address the API listens on; any but loopback needs API keys")
    port: int = _setting(8000, "port of the API; 0 takes a free one", ge=0, le=65535)
    slots: Slots | None = None
    context: Context | None = None
    queue: Queue | None = None
    budget: Budget | None = None
    kv_tokens: KVTokens = _setting(
        None,
        "size of the KV pool: tokens (8192), bytes (2GiB) or a share of the memory left after the weights (0.5); "
        f"default: slots x context, on a GPU what {GPU_MEMORY_SHARE} of its memory holds",
        unit="tokens",
    )
    mode: Mode = "continuous"
    preemption: Preemption = "recompute"
    swap_space: Annotated[SwapSpace, BeforeValidator(_bytes)] = 1 << 30
    prefix_cache: PrefixCache = True
    prefix_sharing: PrefixSharing = False
    itl_target: Annotated[ItlTarget, BeforeValidator(_milliseconds)] = 0
    weights: Literal["auto", "int8", "int4", "fp32", "bf16"] = _setting(
        "auto",
        "type of the weights; auto: the fastest here that answers as well as fp32; int4 takes least and costs quality "
        "unless the model comes in 4 bits",
    )
    kv_dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = _setting(
        "auto",
        "type of the KV pool; auto: as the weights, bf16 beside int8; int8 takes least and costs a little quality",
    )
    device: Annotated[str, AfterValidator(_check_device)] = _setting("auto", "auto, cpu, cuda or cuda:N")
    threads: int | None = _setting(None, "CPU threads of the engine; default: physical cores", ge=1, le=512)
    api_key: Annotated[StringList, AfterValidator(_check_api_keys)] = _setting(
        [], "LABEL=KEY, repeatable; with keys, every route but /health asks for one"
    )
    api_key_file: Path | None = _setting(None, "file with one LABEL=KEY a line, read at start")
    allowed_host: StringList = _setting([], "further Host header that clients may send, repeatable")
    drain_timeout: float = _setting(30.0, "how long a stop waits for running requests", unit="seconds", ge=0, le=3600)
    heartbeat: float = _setting(
        10.0, "comment line sent to a stream that waits this long without a token", unit="seconds", ge=0.1, le=3600
    )
    step_timeout: float = _setting(
        30.0, "a step longer than this counts as wedged: health turns 503", unit="seconds", ge=1, le=3600
    )
    max_body: Annotated[int, BeforeValidator(_bytes)] = _setting(
        4 << 20, "largest request body", unit="bytes", ge=1024, le=1 << 30
    )
    history_days: float = _setting(
        14.0, "how long history is kept (numbers and events, no prompt text); 0: none", unit="days", ge=0, le=3660
    )
    history_size: int = _setting(500, "size at which the oldest history is dropped", unit="MB", ge=10, le=1_000_000)
    socket: Path | None = _setting(None, "admin socket; default: engine.sock in the runtime folder")


@dataclass(frozen=True)
class Setting:
    """One row of the table of settings, as the command line, the admin API and the console read it."""

    name: str
    help: str
    unit: str
    live: bool
    key: str | None
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
        help=field.description or "",
        unit=str(extra.get("unit") or ""),
        live=name in LiveSettings.model_fields,
        key=extra.get("key"),  # type: ignore[arg-type]
        minimum=getattr(bounds.get("ge"), "ge", None),
        maximum=getattr(bounds.get("le"), "le", None),
        choices=tuple(choices),
        default=field.default,
    )


SETTINGS: dict[str, Setting] = {
    name: _row(name, LiveSettings.model_fields.get(name, field)) for name, field in StartSettings.model_fields.items()
}
"""Every setting by name, in the order in which help and documents list them."""


def load_settings(command_line: dict[str, Any] | None = None) -> StartSettings:
    """Merge command line > ``SLOTDECK_*`` > TOML > defaults.

    Raises SettingsError naming the setting, where the value came from and what is allowed.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    path = config_file()
    if path.is_file():
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"{path}: {error}") from error
        unknown = sorted(set(document) - set(SETTINGS))
        if unknown:
            raise SettingsError(f"{path}: unknown setting {unknown[0]!r}; known are {', '.join(SETTINGS)}")
        values |= document
        origin |= {name: f"{name} in {path}" for name in document}
    elif os.environ.get(CONFIG_VARIABLE):
        raise SettingsError(f"{path}: named by SLOTDECK_CONFIG, but there is no such file")
    for name, setting in SETTINGS.items():
        if setting.variable in os.environ:
            values[name], origin[name] = os.environ[setting.variable], setting.variable
    for name, value in (command_line or {}).items():
        if value is not None and value != []:
            values[name], origin[name] = value, SETTINGS[name].flag
    try:
        return StartSettings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("; ".join(explain(item, origin) for item in error.errors())) from error


def explain(error: Any, origin: dict[str, str] | None = None) -> str:
    """One sentence for one pydantic error about a setting: which one, what is wrong, what is allowed."""
    name = str(error["loc"][0]) if error["loc"] else ""
    label = (origin or {}).get(name, name)
    setting = SETTINGS.get(name)
    given = error.get("input")
    if setting is None:
        return f"{label}: unknown setting; known are {', '.join(SETTINGS)}"
    if error["type"] in ("greater_than_equal", "less_than_equal"):
        unit = f" {setting.unit}" if setting.unit else ""
        return f"{label} must be between {setting.minimum} and {setting.maximum}{unit}, not {given!r}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] in ("int_parsing", "int_type", "int_from_float"):
        message = "give a whole number" + (", or a size such as 500MB or 2GiB" if setting.unit == "bytes" else "")
    return f"{label}: {message} (got {given!r})" if name != "api_key" else f"{label}: {message}"


def to_environment(values: dict[str, Any]) -> dict[str, str]:
    """Settings as ``SLOTDECK_*`` variables, to hand explicit command line values to the engine process.

    Variables, unlike arguments, are not readable by other users, which matters for API keys.
    """
    return {
        SETTINGS[name].variable: ",".join(value) if isinstance(value, list) else str(value)
        for name, value in values.items()
        if value is not None and value != []
    }
