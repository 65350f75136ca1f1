"""What a running engine tells the planner: its model, its settings, and the memory that its pool may take."""

from __future__ import annotations

from slotdeck.console.advice.capacity import Memory, ModelFacts
from slotdeck.console.advice.plan import CurrentSettings
from slotdeck.engine.core.kv_memory import KV_VALUE_BYTES
from slotdeck.engine.settings import GPU_MEMORY_SHARE, LiveSettings
from slotdeck.engine.telemetry.frame import Frame


def model_of(frame: Frame) -> ModelFacts | None:
    """The served model; ``None`` if its sizes are unknown, as with other servers."""
    engine = frame.engine
    if engine.layers is None or engine.kv_heads is None or engine.head_dim is None:
        return None
    return ModelFacts(
        name=engine.model or "the model",
        layers=engine.layers,
        kv_heads=engine.kv_heads,
        head_dim=engine.head_dim,
        weight_bytes=engine.weight_bytes,
        weights=engine.weights,
        trained_context=engine.trained_context,
        parameters=engine.parameters,
    )


def kv_dtype_of(frame: Frame) -> str | None:
    """The engine's KV type; ``None`` if the arithmetic does not know it."""
    return frame.engine.kv_dtype if frame.engine.kv_dtype in KV_VALUE_BYTES else None


def settings_of(frame: Frame) -> LiveSettings:
    """The live settings in force, with the default for each that is unknown.

    The ITL target is left out, because the budget that it leads to is only known while the engine runs.
    """
    known = {name: value for name in LiveSettings.model_fields if (value := getattr(frame.limits, name)) is not None}
    return LiveSettings(**known | {"itl_target": 0})


def current_settings_of(frame: Frame) -> CurrentSettings:
    """The settings that a plan may keep."""
    limits = frame.limits
    return CurrentSettings(slots=limits.slots, context=limits.context, budget=limits.budget, kv_tokens=frame.pool.total)


def memory_of(frame: Frame, utilisation: float = GPU_MEMORY_SHARE) -> Memory | None:
    """The memory that weights and KV cache of this engine could take; ``None`` if it is unknown.

    On a CPU this is the free memory and what the engine's pool and weights take already. Weights that are mapped from
    a file are not added, because the system does not count them as used. ``utilisation`` applies to a GPU.
    """
    host, engine, pool = frame.host, frame.engine, frame.pool
    if (engine.device or "").startswith("cuda"):
        return None if host.gpu_memory_total is None else Memory(host.gpu_memory_total, True, utilisation)
    if host.memory_total is None or host.memory_used is None:
        return None
    per_token = (pool.bytes_per_token or 0) + (pool.scale_bytes_per_token or 0)
    held = (pool.total or 0) * per_token
    if not (engine.kernels or "").startswith("native"):
        held += engine.weight_bytes or 0
    return Memory(host.memory_total - host.memory_used + held, False)
