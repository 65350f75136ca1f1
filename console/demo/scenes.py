"""Five scenes of a minute each. An act is a row with scripted requests; two acts show the same with and without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotdeck.console.demo.rows import Call, Mode, Row

ACT_SECONDS = 30.0
"""Most of one act; it ends early when all its requests are answered."""
TIGHT_CONTEXT = 512
STUTTER_PROMPT = 2000
CROWD = 64
FEW_WAIT = 8
"""Queue in which everybody of a small scene finds a place."""


@dataclass(frozen=True)
class Scene:
    """``title`` in words that need no explanation; ``rows`` need to know the engine's settings."""

    name: str
    title: str


SCENES = {
    scene.name: scene
    for scene in (
        Scene("blocked", "one long answer blocks four"),
        Scene("slowest", "the batch waits for its slowest"),
        Scene("stutter", "someone sends 2,000 tokens and everyone stutters"),
        Scene("pool", "the pool runs out"),
        Scene("promise", "a queue of 512 is a promise"),
    )
}


def scene_rows(name: str, settings: dict[str, Any], trained: int | None) -> list[Row]:
    """The acts of a scene on an engine with these live ``settings``; ``trained`` is the model's longest context."""
    rows: list[Row] = {
        "blocked": _blocked, "slowest": _slowest, "stutter": _stutter, "pool": _pool, "promise": _promise,
    }[name](settings, trained)  # fmt: skip
    return rows


def _act(scene: str, name: str, mode: Mode, calls: list[Call], changes: dict[str, Any]) -> Row:
    users = 1 + max(call.user for call in calls)
    return Row(SCENES[scene].title, name, users, mode, ACT_SECONDS, changes=changes, calls=tuple(calls), scene=scene)


def _room(settings: dict[str, Any], slots: int, context: int) -> dict[str, Any]:
    """Settings with at least so many slots and so much context, a pool that holds them all, and nobody refused."""
    slots, context = max(slots, settings["slots"]), max(context, settings["context"])
    pool = max(settings["kv_tokens"], slots * context)
    return {"slots": slots, "context": context, "kv_tokens": pool, "queue": max(settings["queue"], FEW_WAIT)}


def _answer(settings: dict[str, Any], trained: int | None) -> int:
    """A long answer: most of a context, at most 600 tokens."""
    return min(600, (min(settings["context"], trained or 2048)) * 3 // 4)


def _blocked(settings: dict[str, Any], trained: int | None) -> list[Row]:
    calls = [Call(0, 0, 40, _answer(settings, trained), "long")]
    calls += [Call(1, user, 40, 30, "short") for user in range(1, 5)]
    room = _room(settings, 5, 0)
    return [_act("blocked", mode, mode, calls, room) for mode in ("serial", "continuous")]


def _slowest(settings: dict[str, Any], trained: int | None) -> list[Row]:
    lengths = (30, 60, 90, _answer(settings, trained))
    calls = [Call(0, user, 40, answer, "long" if user == 3 else "short") for user, answer in enumerate(lengths)]
    calls.append(Call(2, 4, 40, 30, "newcomer"))
    room = _room(settings, 4, 0) | {"slots": 4}
    return [_act("slowest", mode, mode, calls, room) for mode in ("static", "continuous")]


def _stutter(settings: dict[str, Any], trained: int | None) -> list[Row]:
    context = min(STUTTER_PROMPT + 200, trained or STUTTER_PROMPT + 200)
    prompt = context - 200
    calls = [Call(0, user, 40, 400, "reader") for user in range(3)]
    calls.append(Call(3, 3, prompt, 20, "newcomer"))
    room = _room(settings, 4, context) | {"itl_target": 0}
    budgets = (("large pieces", 8192), ("pieces of 64", 64))
    return [_act("stutter", name, "continuous", calls, room | {"budget": budget}) for name, budget in budgets]


def _pool(settings: dict[str, Any], trained: int | None) -> list[Row]:
    answer = TIGHT_CONTEXT - 120
    calls = [Call(user * 0.3, user, 80, answer, "reader") for user in range(5)]
    tight = {"slots": 5, "context": TIGHT_CONTEXT, "queue": max(settings["queue"], FEW_WAIT)}
    acts = ((f"pool of {tokens}", tokens) for tokens in (640, 5 * TIGHT_CONTEXT))
    return [_act("pool", name, "continuous", calls, tight | {"kv_tokens": tokens}) for name, tokens in acts]


def _promise(settings: dict[str, Any], trained: int | None) -> list[Row]:
    calls = [Call(user * 0.01, user, 60, 120, "asker") for user in range(CROWD)]
    room = _room(settings, 0, 0)
    slots = room["slots"]
    acts = (("queue of 512", 512), (f"queue of {slots}", slots))
    return [_act("promise", name, "continuous", calls, room | {"queue": depth}) for name, depth in acts]
