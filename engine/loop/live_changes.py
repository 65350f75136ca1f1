"""Settings that change while people stream: checked first, then applied whole or not at all, each with a revision."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from slotdeck.engine.configuration import describe_error
from slotdeck.engine.core.block_pool import blocks_for
from slotdeck.engine.core.events import Event
from slotdeck.engine.core.limits import check_pool_size, check_settings, min_blocks
from slotdeck.engine.core.running_set import ShrinkPlan
from slotdeck.engine.loop.state import LoopState
from slotdeck.engine.settings import BLOCK_SIZE, SETTINGS, LiveSettings, SettingsError
from slotdeck.engine.telemetry.frame import Bounds, LimitInfo

log = logging.getLogger("slotdeck.engine")


class RevisionConflictError(RuntimeError):
    """Somebody else changed the settings in between. ``revision`` is the one in force."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"the settings were changed by someone else: revision {revision} is in force")
        self.revision = revision


@dataclass(frozen=True, slots=True)
class CheckedChange:
    """Settings that may come into force now."""

    names: tuple[str, ...]
    settings: LiveSettings
    num_blocks: int
    """Blocks of the pool with them."""
    source: str


class LiveChanges:
    """Checks and applies changes. The caller holds the lock of ``state``, which knows no step for a resized pool."""

    def __init__(self, state: LoopState) -> None:
        self.revision = 0
        self._state = state
        state.telemetry.requests.on_settings(state.scheduler.settings, self.revision)

    def check(self, changes: dict[str, Any], revision: int | None, source: str) -> CheckedChange:
        """Whether all of ``changes`` may be applied now. ``revision`` is the one they were decided on.

        Raises SettingsError with reason and limit, RevisionConflictError when another revision is in force.
        """
        if revision is not None and revision != self.revision:
            raise RevisionConflictError(self.revision)
        scheduler = self._state.scheduler
        settings = self._validated(changes)
        num_blocks = scheduler.pool.num_blocks
        if settings.kv_tokens != scheduler.settings.kv_tokens:
            num_blocks = blocks_for(settings.kv_tokens)
            settings = settings.model_copy(update={"kv_tokens": num_blocks * BLOCK_SIZE})
        if num_blocks < scheduler.pool.num_blocks:
            check_pool_size(num_blocks, settings, scheduler.requests())
        else:
            check_settings(settings, num_blocks)
        return CheckedChange(tuple(changes), settings, num_blocks, source)

    def apply(self, change: CheckedChange, plan: ShrinkPlan | None = None) -> list[Event]:
        """Put a change into force that was checked since anything last changed; gives what happened to requests.

        ``plan`` is the scheduler's for a smaller pool. When the pool's size changes no step may be running.
        """
        scheduler = self._state.scheduler
        before = scheduler.settings
        events: list[Event] = []
        if change.num_blocks == scheduler.pool.num_blocks:
            scheduler.update(change.settings)
        else:
            _, events = scheduler.resize(change.num_blocks, self._state.clock(), change.settings, plan)
        self.record(change, before)
        return events

    def record(self, change: CheckedChange, before: LiveSettings) -> None:
        """A change has come into force: raise the revision and tell it."""
        after, telemetry = change.settings, self._state.telemetry
        changed = [name for name in change.names if getattr(before, name) != getattr(after, name)]
        if not changed:
            return
        self.revision += 1
        telemetry.requests.on_settings(after, self.revision)
        if "kv_tokens" in changed:
            telemetry.count_pool_resize()
        for name in changed:
            text = f"{name} {getattr(before, name)} → {getattr(after, name)} by {change.source}"
            telemetry.log("setting_changed", text)
            log.info("%s", text)

    def limits(self) -> LimitInfo:
        """What is in force, and what was asked for and is not yet."""
        scheduler, settings = self._state.scheduler, self._state.scheduler.settings
        mode, forecast = scheduler.policy.name, scheduler.itl_forecast
        return LimitInfo(
            **settings.model_dump(exclude={"mode"}),
            revision=self.revision,
            mode=mode,
            next_mode=None if settings.mode == mode else settings.mode,
            budget_in_force=scheduler.budget_in_force,
            itl_outlook=forecast.outlook if forecast else None,
            itl_expected=forecast.seconds if forecast else None,
            bounds=self._bounds(),
        )

    def _bounds(self) -> dict[str, Bounds]:
        """What model, pool and the accepted requests leave of the settings' ranges."""
        scheduler = self._state.scheduler
        context, why = scheduler.pool.num_tokens, "the KV pool holds no more; make kv_tokens larger first"
        trained = self._state.info.trained_context
        if trained is not None and trained <= context:
            context, why = trained, "the model was trained for no more"
        return {
            "context": _narrowed("context", maximum=context, why=why),
            "slots": _narrowed("slots", maximum=scheduler.pool.num_blocks, why="the KV pool has no more blocks"),
            "kv_tokens": _narrowed(
                "kv_tokens",
                minimum=min_blocks(scheduler.settings, scheduler.requests()) * BLOCK_SIZE,
                why="one full context, the slots and the accepted requests would not fit into less",
            ),
        }

    def _validated(self, changes: dict[str, Any]) -> LiveSettings:
        for name in changes:
            if name not in SETTINGS:
                raise SettingsError(f"{name}: unknown setting; known are {', '.join(LiveSettings.model_fields)}")
            if not SETTINGS[name].live:
                raise SettingsError(f"{name} cannot change while the engine runs: restart with {SETTINGS[name].flag}")
        trained = self._state.info.trained_context
        try:
            settings = LiveSettings.model_validate(self._state.scheduler.settings.model_dump() | changes, strict=True)
        except ValidationError as error:
            raise SettingsError("; ".join(describe_error(item) for item in error.errors())) from error
        if trained is not None and settings.context > trained:
            raise SettingsError(f"context {settings.context} is more than the model was trained for: at most {trained}")
        return settings


def _narrowed(name: str, *, why: str, minimum: int | None = None, maximum: int | None = None) -> Bounds:
    """The range of a setting, cut at one of its ends; ``why`` holds only if that is the narrower one."""
    low, high = int(SETTINGS[name].minimum or 0), int(SETTINGS[name].maximum or 0)
    narrower = (minimum is not None and minimum > low) or (maximum is not None and maximum < high)
    return Bounds(least=max(low, minimum or low), most=min(high, maximum or high), why=why if narrower else "")
