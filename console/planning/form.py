"""The inputs of the Planner: how a key steps them and how typed text becomes a value. Pure.

``None`` is automatic: taken from the engine that runs, computed from the others, or left unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from slotdeck.console.advice.capacity import Memory, Speed
from slotdeck.console.advice.plan import TURN_SECONDS, USERS, Plan, Question
from slotdeck.console.advice.running import current_settings_of, kv_dtype_of, memory_of, model_of
from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import UNKNOWN
from slotdeck.engine.core.kv_memory import KV_VALUE_BYTES
from slotdeck.engine.settings import GPU_MEMORY_SHARE, SETTINGS
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.units import parse_bytes

Value = int | float | str | Memory

GIB = 1 << 30


@dataclass(frozen=True)
class Field:
    """One input."""

    name: str
    label: str
    """For the list of inputs."""
    help: str
    """What can be typed, and what automatic means."""
    steps: tuple[float, ...]
    """Sizes of a step. Each is used up to ten times its size, the last one beyond. Empty: not a number."""
    low: float = 1
    high: float = 1e6
    unit: str = ""
    long_label: str = ""
    """For the heading, if it differs from ``label``."""

    @property
    def title(self) -> str:
        """The label in full."""
        return self.long_label or self.label


FIELDS = (
    Field("users", "users", f"people or agents; empty: {USERS}", (1, 5, 10), high=100_000),
    Field(
        "turn_seconds", "turn every", f"seconds, 0: no pauses; empty: {TURN_SECONDS:g}", (5, 10), 0, 86_400, "s",
        "one turn every",
    ),
    Field(
        "generate_seconds", "busy / turn", "seconds; empty: from speed, else 12", (1, 5), 0.1, 3600, "s",
        "busy time per turn",
    ),
    Field("prompt", "prompt", "tokens, earlier turns included; empty: unknown", (50, 500), high=1 << 20, unit="tok"),
    Field("answer", "answer", "tokens; empty: unknown", (50, 100), high=1 << 20, unit="tok"),
    Field(
        "context", "context", "tokens of one conversation; empty: as needed, else the current one", (256, 1024),
        SETTINGS["context"].minimum or 1, SETTINGS["context"].maximum or 1, "tok",
    ),
    Field("kv_dtype", "cache type", f"{', '.join(KV_VALUE_BYTES)}; empty: the current one", ()),
    Field("memory", "memory", "16GiB of RAM, or gpu 24GiB; empty: this machine", ()),
)  # fmt: skip
KV_CHOICES: tuple[str | None, ...] = (None, *KV_VALUE_BYTES)


@dataclass(frozen=True)
class Form:
    """The inputs that were given, by name."""

    values: MappingProxyType[str, Value] = field(default_factory=lambda: MappingProxyType({}))

    def given(self, name: str) -> Value | None:
        """What was given; ``None`` if the input is automatic."""
        return self.values.get(name)

    def put(self, name: str, value: Value | None) -> Form:
        """The form with another value; ``None`` makes the input automatic again."""
        rest = {key: known for key, known in self.values.items() if key != name}
        return replace(self, values=MappingProxyType(rest if value is None else rest | {name: value}))

    def typed(self, name: str, text: str) -> tuple[Form, str | None]:
        """The form with the typed value, or the sentence that says why it is refused."""
        text = text.strip()
        if not text:
            return self.put(name, None), None
        one = by_name(name)
        value = _PARSERS.get(name, lambda words: _number(one, words))(text)
        if value is None:
            return self, f"{one.title}: {one.help}"
        return self.put(name, value), None

    def stepped(self, name: str, direction: int, plan: Plan) -> Form:
        """The form with an input one step up (``direction`` 1) or down (-1) from the shown value."""
        if name == "kv_dtype":
            at = KV_CHOICES.index(str(self.values[name]) if name in self.values else None)
            return self.put(name, KV_CHOICES[(at + direction) % len(KV_CHOICES)])
        if name == "memory":
            memory = plan.question.memory
            size = max(GIB, (memory.total // GIB + direction) * GIB)
            return self.put(name, replace(memory, total=size))
        one = by_name(name)
        now = shown_number(name, self, plan)
        value = _to_step(0.0 if now is None else now, one.steps, direction)
        return self.put(name, _fitting(one, min(one.high, max(one.low, value))))

    def question(self, frame: Frame, here: Memory | None = None, speed: Speed | None = None) -> Question | None:
        """The question for the engine of the frame; ``None`` if its model or the memory is unknown.

        ``here`` is the memory of its machine if it was looked at before, ``speed`` what was measured there.
        """
        model, given = model_of(frame), self.values.get
        memory = given("memory") or here or memory_of(frame)
        if model is None or not isinstance(memory, Memory):
            return None
        numbers = {
            name: value
            for name in ("users", "turn_seconds", "generate_seconds", "prompt", "answer", "context")
            if (value := given(name)) is not None
        }
        if "memory" in self.values and memory.gpu:
            model = model.with_weights("bf16")  # as a GPU would have them
        kv_dtype = str(given("kv_dtype") or kv_dtype_of(frame) or "bf16")
        elsewhere = self.elsewhere is not None
        return Question(
            model,
            memory,
            kv_dtype,
            speed=None if elsewhere else speed,
            now=current_settings_of(frame),
            **numbers,  # type: ignore[arg-type]
        )

    @property
    def elsewhere(self) -> str | None:
        """One sentence that says why the plan is not for the engine that runs; ``None`` if it is."""
        if "memory" in self.values:
            return "this plan is for another memory: clear it (enter, empty, enter) to plan for this machine"
        return None


def by_name(name: str) -> Field:
    """The field of that name."""
    return next(one for one in FIELDS if one.name == name)


def shown_number(name: str, form: Form, plan: Plan) -> float | None:
    """The number of an input, given or automatic."""
    if name == "generate_seconds":
        return plan.load.generate_seconds
    if name == "context":
        return plan.capacity.context
    value = getattr(plan.question, name)
    return None if value is None else float(value)


def shown(name: str, form: Form, plan: Plan) -> str:
    """The value of an input as the page writes it."""
    if name == "kv_dtype":
        return plan.question.kv_dtype
    if name == "memory":
        memory = plan.question.memory
        return f"{formats.gibibytes(memory.total)} GiB {'GPU' if memory.gpu else 'RAM'}"
    value = shown_number(name, form, plan)
    unit = by_name(name).unit
    return UNKNOWN if value is None else f"{value:.3g} {unit}".rstrip() if value < 100 else f"{value:,.0f} {unit}"


def origin(name: str, form: Form, plan: Plan) -> str:
    """Where a value comes from, in a word or two; empty if it was given."""
    if form.given(name) is not None:
        return ""
    if name == "generate_seconds":
        return "assumed" if plan.assumed else "from speed"
    if name == "context":
        return "needed" if plan.question.prompt and plan.question.answer else "current"
    return {"users": "assumed", "turn_seconds": "assumed", "kv_dtype": "current", "memory": "local"}.get(name, "")


def _to_step(value: float, steps: tuple[float, ...], direction: int) -> float:
    """The next multiple of a step. Each step is used up to ten times its size, the last one beyond."""
    probe = value + direction * 1e-6
    step = next((one for one in steps[:-1] if probe < 10 * one), steps[-1])
    return (value // step + 1) * step if direction > 0 else -(-value // step) * step - step


def _fitting(one: Field, value: float) -> int | float:
    """A whole number if the input is a count."""
    return value if one.unit == "s" else int(value)


def _number(one: Field, text: str) -> Value | None:
    try:
        value = float(text.replace(",", "").removesuffix(one.unit))
    except ValueError:
        return None
    if not one.low <= value <= one.high or (one.unit != "s" and value != int(value)):
        return None
    return _fitting(one, value)


def _kv_dtype(text: str) -> Value | None:
    return text.lower() if text.lower() in KV_VALUE_BYTES else None


def _memory(text: str) -> Value | None:
    words = text.lower().split()
    gpu = "gpu" in words
    size = parse_bytes("".join(word for word in words if word not in ("gpu", "ram")))
    return None if size is None else Memory(size, gpu, GPU_MEMORY_SHARE if gpu else 1.0)


_PARSERS: dict[str, Callable[[str], Value | None]] = {"kv_dtype": _kv_dtype, "memory": _memory}
