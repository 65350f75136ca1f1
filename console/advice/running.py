"""What a running engine tells the planner: its model and the memory that its pool may take. Pure."""

from __future__ import annotations

from slotdeck.console.advice.capacity import KV_WIDTHS, UTILISATION, Memory, ModelFacts
from slotdeck.console.advice.plan import Now
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import Frame


def model_of(frame: Frame) -> ModelFacts | None:
    """The model that is served; ``None`` if its sizes are not known, as with other servers."""
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
    """The type of its cache, if it is one that the arithmetic knows."""
    return frame.engine.kv_dtype if frame.engine.kv_dtype in KV_WIDTHS else None


def settings_of(frame: Frame) -> LiveSettings:
    """All live settings in force, the default for what is not known; an ITL target is left out, since the budget that
    it chooses is known only while it runs."""
    known = {name: value for name in LiveSettings.model_fields if (value := getattr(frame.limits, name)) is not None}
    return LiveSettings(**known | {"itl_target": 0})


def now_of(frame: Frame) -> Now:
    """The settings that a plan may leave as they are."""
    limits = frame.limits
    return Now(slots=limits.slots, context=limits.context, budget=limits.budget, kv_tokens=frame.pool.total)


def memory_of(frame: Frame, utilisation: float = UTILISATION) -> Memory | None:
    """What weights and cache of this engine could take: what is free now and what they take already.

    ``utilisation`` is for a GPU. Weights that are mapped from a file are not counted as used by the system, so they
    are not added.
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
