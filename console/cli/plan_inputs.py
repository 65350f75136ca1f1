"""Collects the numbers of a plan: from flags, a config.json, a model on disk, the running engine and this machine."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slotdeck.console.advice.capacity import CapacityError, Memory, ModelFacts, Speed
from slotdeck.console.advice.model_file import facts_from_config
from slotdeck.console.advice.plan import TURN_SECONDS, USERS, CurrentSettings, Question
from slotdeck.console.advice.running import current_settings_of, kv_dtype_of, memory_of, model_of
from slotdeck.console.cli.exits import FAILED, OK, USAGE, fail, say
from slotdeck.console.client.admin import AdminClient, AdminError
from slotdeck.console.hosting.engine_process import ENGINE_COMMAND, PROGRESS_PREFIX
from slotdeck.engine.settings import GPU_MEMORY_SHARE
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.units import parse_bytes

MAX_CONFIG_BYTES = 4 << 20
"""A larger file is not a config.json and was named by mistake."""


@dataclass(frozen=True)
class Asked:
    """The given flags; ``None`` if not given. Sizes are text as typed: ``24GiB``."""

    model_config: Path | None = None
    model: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    weights_size: str | None = None
    weights: str | None = None
    gpu: str | None = None
    memory: str | None = None
    utilisation: float | None = None
    users: int | None = None
    turn_seconds: float | None = None
    generate_seconds: float | None = None
    prompt: int | None = None
    answer: int | None = None
    context: int | None = None
    kv_dtype: str | None = None
    prefill_speed: float | None = None
    decode_speed: float | None = None


def question_from(asked: Asked, admin: AdminClient, default_model: str) -> Question:
    """Collect all numbers.

    A bad number or an unknown model ends the command with one line and exit code 2, an unreadable file with 1.
    ``default_model`` is the configured model, which is used if no model is given and no engine runs.
    """
    _check_together(asked)
    try:
        frame = _running(admin)
        memory = _memory(asked, frame)  # First, because describing the model may take seconds.
        model = _weighed(_model(asked, frame, default_model), asked)
        kv_dtype = asked.kv_dtype or _kv_dtype(asked, frame)
        return Question(
            model=model,
            memory=memory,
            kv_dtype=kv_dtype,
            users=USERS if asked.users is None else asked.users,
            turn_seconds=TURN_SECONDS if asked.turn_seconds is None else asked.turn_seconds,
            generate_seconds=asked.generate_seconds,
            prompt=asked.prompt,
            answer=asked.answer,
            context=asked.context,
            speed=_speed(asked, frame, model, kv_dtype),
            now=current_settings_of(frame) if frame is not None and _here(asked) else CurrentSettings(),
        )
    except CapacityError as error:
        fail(str(error), USAGE)


def _check_together(asked: Asked) -> None:
    typed = [asked.layers, asked.kv_heads, asked.head_dim]
    named = [asked.model_config, asked.model, next((one for one in typed if one is not None), None)]
    if sum(one is not None for one in named) > 1:
        fail("give only one of --model-config, --model and --layers", USAGE)
    if any(one is not None for one in typed) and None in typed:
        fail("--layers, --kv-heads and --head-dim must be given together", USAGE)
    if asked.gpu is not None and asked.memory is not None:
        fail("give only one of --gpu and --memory", USAGE)
    if asked.utilisation is not None and asked.memory is not None:
        fail("--utilisation applies to a GPU; all of --memory is used", USAGE)
    if (asked.prefill_speed is None) != (asked.decode_speed is None):
        fail("--prefill-speed and --decode-speed must be given together", USAGE)


def _running(admin: AdminClient) -> Frame | None:
    try:
        return admin.running()
    except AdminError as error:
        say(f"{error}; planning without it")
        return None


def _model(asked: Asked, frame: Frame | None, default_model: str) -> ModelFacts:
    if asked.model_config is not None:
        return _from_config(asked.model_config, asked.weights or "bf16")
    if asked.layers is not None and asked.kv_heads is not None and asked.head_dim is not None:
        return ModelFacts("the model", asked.layers, asked.kv_heads, asked.head_dim)
    if asked.model is None and frame is not None and (known := model_of(frame)) is not None:
        return known
    source = asked.model or default_model
    config = Path(source).expanduser() / "config.json"
    described, reason, code = _described(source)
    if described is None and config.is_file():
        say(f"{reason} Using its config.json instead.")
        return _from_config(config, asked.weights or "bf16")
    if described is None:
        fail(reason, code)
    return described


def _from_config(path: Path, weights: str) -> ModelFacts:
    try:
        if path.is_dir():
            path /= "config.json"
        if path.stat().st_size > MAX_CONFIG_BYTES:
            fail(f"{path} is not a config.json: it is larger than {MAX_CONFIG_BYTES >> 20} MiB", FAILED)
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        fail(f"{path}: {error.strerror or error}", FAILED)
    except ValueError as error:
        fail(f"{path} is not JSON: {error}", FAILED)
    if not isinstance(document, dict):
        fail(f"{path} is not a config.json: it contains no JSON object", FAILED)
    named = document.get("_name_or_path")
    name = named if isinstance(named, str) and named else path.resolve().parent.name if path.stem == "config" else ""
    return facts_from_config(document, name or path.stem, weights)


def _described(source: str) -> tuple[ModelFacts | None, str, int]:
    """The engine's description of a model, without loading it; or ``None``, the reason and the exit code."""
    result = subprocess.run(
        [*ENGINE_COMMAND, "model", "info", source, "--json"], capture_output=True, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(result.stdout[max(0, result.stdout.find("{")) :])
        return (
            ModelFacts(
                name=found["id"],
                layers=found["layers"],
                kv_heads=found["kv_heads"],
                head_dim=found["head_dim"],
                weight_bytes=found["weight_bytes"],
                weights=found["weights"],
                trained_context=found["trained_context"],
                parameters=found["parameters"],
                embedding=found["vocabulary"] * found["hidden_size"],
                tied=found["tied_embeddings"],
            ),
            "",
            OK,
        )
    except (ValueError, KeyError):
        said = (result.stdout + result.stderr).splitlines()
        lines = [line.removeprefix(PROGRESS_PREFIX) for line in said if line.startswith(PROGRESS_PREFIX)]
        reason = lines[-1] if lines else f"{source}: the engine could not describe it"
        return None, reason, USAGE if result.returncode == USAGE else FAILED


def _weighed(model: ModelFacts, asked: Asked) -> ModelFacts:
    """The model with weights of the given size, or else of the given type.

    By default the weights stay as they are on this machine, and are 16-bit on a GPU that is planned for.
    """
    if asked.weights_size is not None:
        return replace(model, weight_bytes=_size("--weights-size", asked.weights_size), weights=asked.weights)
    return model.with_weights(asked.weights or ("bf16" if asked.gpu is not None else None))


def _memory(asked: Asked, frame: Frame | None) -> Memory:
    share = GPU_MEMORY_SHARE if asked.utilisation is None else asked.utilisation
    if asked.gpu is not None:
        return Memory(_size("--gpu", asked.gpu), True, share)
    if asked.memory is not None:
        return Memory(_size("--memory", asked.memory), False)
    here = memory_of(frame, share) if frame is not None else None
    if here is None:
        import psutil

        here = Memory(int(psutil.virtual_memory().available), False)
    if asked.utilisation is not None and not here.gpu:
        fail("--utilisation applies to a GPU: give --gpu too", USAGE)
    return here


def _here(asked: Asked) -> bool:
    """True if the plan is for the machine and the model of the running engine."""
    return all(one is None for one in (asked.gpu, asked.memory, asked.model, asked.model_config, asked.layers))


def _kv_dtype(asked: Asked, frame: Frame | None) -> str:
    """The KV type of the running engine if the plan is for it, else 16-bit."""
    return (kv_dtype_of(frame) if frame is not None and _here(asked) else None) or "bf16"


def _speed(asked: Asked, frame: Frame | None, model: ModelFacts, kv_dtype: str) -> Speed | None:
    """The given speed, or else the one that was measured on this machine for this model."""
    from slotdeck.console.planning.measured_speed import speed_of_engine, speed_of_model

    if asked.prefill_speed is not None and asked.decode_speed is not None:
        return Speed(asked.prefill_speed, asked.decode_speed)
    if asked.gpu is not None or asked.memory is not None:
        return None
    if frame is not None and _here(asked):
        return speed_of_engine(frame.engine)
    return speed_of_model(model, kv_dtype)


def _size(flag: str, text: str) -> int:
    size = parse_bytes(text)
    if size is None:
        fail(f"{flag} needs a size with its unit, for example 24GiB or 16GB, not {text!r}", USAGE)
    return size
