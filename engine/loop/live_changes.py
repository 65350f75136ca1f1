"""Settings that change while people stream: checked first, then applied whole or not at all, each with a revision."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from slotdeck.engine.configuration import describe_error
from slotdeck.engine.core.block_pool import blocks_for
from slotdeck.engine.core.events import Event
from slotdeck.engine.core.limits import check_pool_size, check_settings, least_blocks
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.loop.step_runner import StepRunner
from slotdeck.engine.settings import BLOCK_SIZE, SETTINGS, LiveSettings, SettingsError
from slotdeck.engine.telemetry.frame import Bounds, EngineInfo, LimitInfo
from slotdeck.engine.telemetry.telemetry import Telemetry

log = logging.getLogger("slotdeck.engine")


class RevisionConflictError(RuntimeError):
    """Somebody else changed the settings in between. ``revision`` is the one in force."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"the settings were changed by someone else: revision {revision} is in force")
        self.revision = revision


class LiveChanges:
    """Whoever calls it holds the engine's lock, and for a change of ``kv_tokens`` is between two steps."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        info: EngineInfo,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self.revision = 0
        self._scheduler, self._runner, self._info = scheduler, runner, info
        self._telemetry, self._clock = telemetry, clock
        telemetry.requests.on_settings(scheduler.settings, self.revision)

    def apply(self, changes: dict[str, Any], revision: int | None, source: str) -> list[Event]:
        """Put all of ``changes`` in force or none; gives what happened to requests meanwhile.

        ``revision`` is the one they were decided on, ``source`` who asked. Raises SettingsError with reason and
        maximum, RevisionConflictError when another revision is in force.
        """
        if revision is not None and revision != self.revision:
            raise RevisionConflictError(self.revision)
        events: list[Event] = []
        before = self._scheduler.settings
        after = self._checked(changes)
        if after.kv_tokens != before.kv_tokens:
            after = self._resize_pool(before, after, events)
        self._scheduler.update(after)
        changed = [name for name in changes if getattr(before, name) != getattr(after, name)]
        if changed:
            self.revision += 1
            self._telemetry.requests.on_settings(after, self.revision)
        for name in changed:
            text = f"{name} {getattr(before, name)} → {getattr(after, name)} by {source}"
            self._telemetry.log("setting_changed", text)
            log.info("%s", text)
        return events

    def limits(self) -> LimitInfo:
        """What is in force, and what was asked for and is not yet."""
        scheduler, settings = self._scheduler, self._scheduler.settings
        mode, promise = scheduler.policy.name, scheduler.promise
        return LimitInfo(
            **settings.model_dump(exclude={"mode"}),
            revision=self.revision,
            mode=mode,
            next_mode=None if settings.mode == mode else settings.mode,
            budget_in_force=scheduler.budget_in_force,
            itl_outlook=promise.outlook if promise else None,
            itl_expected=promise.seconds if promise else None,
            bounds=self._bounds(),
        )

    def _bounds(self) -> dict[str, Bounds]:
        """What model, pool and the accepted requests leave of the settings' ranges."""
        pool = self._scheduler.pool
        context, why = pool.num_tokens, "the KV pool holds no more; make kv_tokens larger first"
        trained = self._info.trained_context
        if trained is not None and trained <= context:
            context, why = trained, "the model was trained for no more"
        return {
            "context": _narrowed("context", most=context, why=why),
            "slots": _narrowed("slots", most=pool.num_blocks, why="the KV pool has no more blocks"),
            "kv_tokens": _narrowed(
                "kv_tokens",
                least=least_blocks(self._scheduler.settings, self._scheduler.requests()) * BLOCK_SIZE,
                why="the context, the slots and the accepted requests need as much",
            ),
        }

    def _checked(self, changes: dict[str, Any]) -> LiveSettings:
        for name in changes:
            if name not in SETTINGS:
                raise SettingsError(f"{name}: unknown setting; known are {', '.join(LiveSettings.model_fields)}")
            if not SETTINGS[name].live:
                raise SettingsError(f"{name} cannot change while the engine runs: restart with {SETTINGS[name].flag}")
        trained = self._info.trained_context
        try:
            settings = LiveSettings.model_validate(self._scheduler.settings.model_dump() | changes, strict=True)
        except ValidationError as error:
            raise SettingsError("; ".join(describe_error(item) for item in error.errors())) from error
        if trained is not None and settings.context > trained:
            raise SettingsError(f"context {settings.context} is more than the model was trained for: at most {trained}")
        return settings

    def _resize_pool(self, before: LiveSettings, after: LiveSettings, events: list[Event]) -> LiveSettings:
        """Grow or shrink pool and tensors. All or nothing: what can fail comes first."""
        num_blocks, old = blocks_for(after.kv_tokens), self._scheduler.pool.num_blocks
        after = after.model_copy(update={"kv_tokens": num_blocks * BLOCK_SIZE})
        if num_blocks > old:
            check_settings(after, num_blocks)
            try:
                self._runner.resize(num_blocks)
            except (ValueError, MemoryError, RuntimeError) as error:
                raise SettingsError(str(error)) from error
            self._scheduler.resize(num_blocks, self._clock())
        elif num_blocks < old:
            check_pool_size(num_blocks, after, self._scheduler.requests())
            # A smaller context or fewer slots may be what makes it possible.
            self._scheduler.update(after.model_copy(update={"kv_tokens": before.kv_tokens}))
            moves, happened = self._scheduler.resize(num_blocks, self._clock())
            events += happened
            self._runner.move(list(moves.items()))
            self._runner.resize(num_blocks)
        self._telemetry.count_pool_resize()
        return after


def _narrowed(name: str, *, why: str, least: int | None = None, most: int | None = None) -> Bounds:
    """The range of a setting, cut at one of its ends; ``why`` holds only if that is the narrower one."""
    low, high = int(SETTINGS[name].minimum or 0), int(SETTINGS[name].maximum or 0)
    narrower = (least is not None and least > low) or (most is not None and most < high)
    return Bounds(least=max(low, least or low), most=min(high, most or high), why=why if narrower else "")
