"""Tries hundreds of settings on simulated traffic and says which to take. Pure.

Many settings need no run of their own. Some cannot differ from one that was run: a queue that never filled may be
longer or shorter as far as nobody waited, slots that were never all taken may be more, a pool that bound nobody may be
larger, and a context that refused nobody may be larger in the same pool. Others are sure to refuse somebody: a queue
shorter than what waited in a run that is the same up to that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from slotdeck.console.advice.outcome import Outcome
from slotdeck.engine.settings import BLOCK_SIZE, LiveSettings

SLOTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
BUDGETS = (32, 64, 128, 256, 512)
QUEUES = (2, 4, 8, 16, 64)
CONTEXTS = (1, 2)
"""Times what the longest request needs."""
POOLS = (0.5, 1.0)
"""Times slots x the context that is needed."""
NEAR = 1.05
"""Scores this close are the same to people; then the smaller setting is taken."""

Run = Callable[[LiveSettings], Outcome]


@dataclass(frozen=True)
class Goals:
    """What must hold: seconds that 19 of 20 first tokens and gaps keep, nobody preempted, nobody refused."""

    ttft_p95: float = 2.0
    itl_p95: float = 0.15


@dataclass(frozen=True)
class Tried:
    """One setting and what its run gave; ``None`` times had no samples."""

    settings: LiveSettings
    ttft_p50: float | None
    ttft_p95: float | None
    itl_p50: float | None
    itl_p95: float | None
    tokens_per_second: float | None
    preemptions: int
    refused: int
    """503s, and requests longer than the context."""
    finished: int
    most_waiting: int
    most_queued: int
    most_admitted: int
    pool_bound: bool

    @classmethod
    def of(cls, settings: LiveSettings, outcome: Outcome) -> Tried:
        return cls(
            settings=settings,
            ttft_p50=outcome.ttft_p50,
            ttft_p95=outcome.ttft_p95,
            itl_p50=outcome.itl_p50,
            itl_p95=outcome.itl_p95,
            tokens_per_second=outcome.tokens_per_second,
            preemptions=outcome.preemptions,
            refused=outcome.rejected + outcome.too_long,
            finished=outcome.finished,
            most_waiting=outcome.most_waiting,
            most_queued=outcome.most_queued,
            most_admitted=outcome.most_admitted,
            pool_bound=outcome.pool_bound,
        )

    def score(self, goals: Goals) -> float:
        """How much of the tighter goal is used up; above 1 it is missed."""
        return max((self.ttft_p95 or 0.0) / goals.ttft_p95, (self.itl_p95 or 0.0) / goals.itl_p95)

    def misses(self, goals: Goals) -> list[str]:
        """Which goals it does not keep, in words; empty when all hold."""
        found = []
        if self.ttft_p95 is None or self.ttft_p95 > goals.ttft_p95:
            found.append("TTFT p95")
        if self.itl_p95 is not None and self.itl_p95 > goals.itl_p95:
            found.append("ITL p95")
        if self.preemptions:
            found.append("preemptions")
        if self.refused:
            found.append("refused requests")
        return found


@dataclass
class Found:
    """The result of a search. ``tried`` holds every setting whose run is known, ``simulated`` counts the runs behind
    them, ``refusing`` the settings that were ruled out because their queue is sure to refuse somebody."""

    goals: Goals
    tried: list[Tried] = field(default_factory=list)
    refusing: int = 0
    simulated: int = 0
    requests: int = 0
    """Served in all runs together."""

    @property
    def kept(self) -> list[Tried]:
        """Those that keep all goals, best first."""
        return self._ranked([tried for tried in self.tried if not tried.misses(self.goals)])

    @property
    def ranked(self) -> list[Tried]:
        """Those that keep all goals, or when there are none, all: fewest misses first."""
        kept = self.kept
        if kept:
            return kept
        return sorted(
            self.tried,
            key=lambda tried: (tried.refused > 0, tried.preemptions > 0, tried.score(self.goals), _size(tried)),
        )

    @property
    def choice(self) -> Tried | None:
        return next(iter(self.ranked), None)

    @property
    def runner_up(self) -> Tried | None:
        """The best that differs in slots, budget or mode, so that comparing the two says something."""
        first = self.choice
        if first is None:
            return None
        return next((tried for tried in self.ranked if _kind(tried) != _kind(first)), None)

    def _ranked(self, kept: list[Tried]) -> list[Tried]:
        """By score, but what is near the best by size: the smallest pool, the fewest slots, the shortest queue."""
        best = min((tried.score(self.goals) for tried in kept), default=0.0)
        return sorted(
            kept,
            key=lambda tried: (
                0.0 if tried.score(self.goals) <= best * NEAR else tried.score(self.goals),
                _size(tried),
            ),
        )

    def frontier(self) -> list[Tried]:
        """Settings that no other beats in TTFT p95, ITL p95, tokens/s and size of the pool at once; of equals the
        smallest. Those that refuse or preempt are left out, unless all do."""
        calm = [tried for tried in self.tried if not tried.refused and not tried.preemptions] or self.tried
        smallest: dict[tuple[float, ...], Tried] = {}
        for tried in sorted(calm, key=_size):
            smallest.setdefault(_worth(tried)[:3], tried)
        candidates = list(smallest.values())
        worths = [_worth(tried) for tried in candidates]
        best = [
            tried
            for tried, mine in zip(candidates, worths, strict=True)
            if not any(
                other != mine and all(theirs <= own for theirs, own in zip(other, mine, strict=True))
                for other in worths
            )
        ]
        return sorted(best, key=lambda tried: (tried.score(self.goals), _size(tried)))


def _worth(tried: Tried) -> tuple[float, ...]:
    """Small is good; rounded to what people tell apart."""
    return (
        round(tried.ttft_p95 or 0.0, 2),
        round(tried.itl_p95 or 0.0, 3),
        -round(tried.tokens_per_second or 0.0),
        tried.settings.kv_tokens,
    )


def _size(tried: Tried) -> tuple[int, ...]:
    settings = tried.settings
    return settings.kv_tokens, settings.slots, settings.context, settings.queue, settings.budget


def _kind(tried: Tried) -> tuple[int, int, str]:
    return tried.settings.slots, tried.settings.budget, tried.settings.mode


def pools(slots: int, context: int, most_pool: int) -> list[int]:
    """Sizes of the pool to try, in tokens, for a context that is needed."""
    wanted = {max(context, int(part * slots * context)) for part in POOLS}
    return sorted(-(-size // BLOCK_SIZE) * BLOCK_SIZE for size in wanted if size <= most_pool)


def search(
    run: Run,
    base: LiveSettings,
    *,
    goals: Goals,
    context: int,
    most_slots: int,
    most_pool: int,
    budgets: Sequence[int] = BUDGETS,
    modes: Iterable[str] = ("continuous",),
    on_run: Callable[[LiveSettings], None] | None = None,
) -> Found:
    """Try slots, pool, queue, budget and context, and the modes named. ``context`` is what the longest request needs;
    ``most_pool`` is what memory allows, in tokens."""
    found = Found(goals)
    for mode, budget in product(modes, budgets):
        runs = _Runs(run, base.model_copy(update={"mode": mode, "budget": budget}), found, on_run)
        for slots in SLOTS:
            if slots > most_slots or (mode == "serial" and slots > 1):
                break
            for pool in pools(slots, context, most_pool):
                if slots * BLOCK_SIZE > pool:
                    continue
                for queue in sorted(QUEUES, reverse=True):
                    tried = runs.tried(slots, pool, queue, context)
                    larger = [times * context for times in CONTEXTS if times * context <= pool]
                    if tried is None:
                        found.refusing += len(larger)
                        continue
                    found.tried += [
                        _with(tried, slots=slots, kv_tokens=pool, queue=queue, context=size) for size in larger
                    ]
    return found


class _Runs:
    """The runs of one mode and budget, smallest slots and pools first, longest queue first."""

    def __init__(
        self, run: Run, base: LiveSettings, found: Found, on_run: Callable[[LiveSettings], None] | None
    ) -> None:
        self._run, self._base, self._found, self._on_run = run, base, found, on_run
        self._done: list[Tried] = []

    def tried(self, slots: int, pool: int, queue: int, context: int) -> Tried | None:
        """What this setting gives: an earlier run that cannot differ, or a new one; ``None`` when it is sure to refuse
        somebody."""
        same = next((done for done in self._done if _cannot_differ(done, slots, pool, queue)), None)
        if same is not None:
            return same
        if any(_sure_to_refuse(done, slots, pool, queue) for done in self._done):
            return None
        changes = {"slots": slots, "kv_tokens": pool, "queue": queue, "context": context}
        settings = self._base.model_copy(update=changes)
        if self._on_run is not None:
            self._on_run(settings)
        tried = Tried.of(settings, self._run(settings))
        self._found.simulated += 1
        self._found.requests += tried.finished
        self._done.append(tried)
        return tried


def _cannot_differ(done: Tried, slots: int, pool: int, queue: int) -> bool:
    same_queue = queue == done.settings.queue or (not done.refused and done.most_waiting <= queue)
    return same_queue and _alike(done, slots, pool)


def _sure_to_refuse(done: Tried, slots: int, pool: int, queue: int) -> bool:
    """Until its queue overflows, a run with a shorter queue is the same run."""
    overflows = queue < done.settings.queue and (done.refused > 0 or done.most_queued > queue)
    return overflows and _alike(done, slots, pool)


def _alike(done: Tried, slots: int, pool: int) -> bool:
    """Whether slots and pool make no difference to what was run."""
    before = done.settings
    same_pool = pool == before.kv_tokens or (pool > before.kv_tokens and not done.pool_bound)
    same_slots = slots == before.slots or (slots > before.slots and done.most_admitted < before.slots)
    return same_pool and same_slots


def _with(tried: Tried, **changes: int) -> Tried:
    return replace(tried, settings=tried.settings.model_copy(update=changes))
