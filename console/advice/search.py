"""Tries hundreds of settings on simulated traffic and recommends one.

Many settings need no run of their own, because their result is known from another run:

- A queue of another length gives the same result if it is never full in either case.
- More slots give the same result if the slots were never all in use.
- A larger pool gives the same result if the pool never limited anything.
- A larger context in the same pool gives the same result if no request was too long.

Other settings are sure to refuse a request: those with a queue that is shorter than what waited in an otherwise equal
run. They are ruled out without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from slotdeck.console.advice.simulation_result import SimulationResult
from slotdeck.engine.settings import BLOCK_SIZE, LiveSettings

SLOTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
BUDGETS = (32, 64, 128, 256, 512)
QUEUES = (2, 4, 8, 16, 64)
CONTEXTS = (1, 2)
"""Contexts to try, as multiples of what the longest request needs."""
POOLS = (0.5, 1.0)
"""Pools to try, as multiples of slots x the needed context."""
NEAR = 1.05
"""Scores within this factor count as equal; the smaller setting is then preferred."""

Run = Callable[[LiveSettings], SimulationResult]


@dataclass(frozen=True)
class Goals:
    """Limits for the p95 of TTFT and ITL, in seconds. Besides, no request may be preempted or refused."""

    ttft_p95: float = 2.0
    itl_p95: float = 0.15


@dataclass(frozen=True)
class Trial:
    """One combination of settings and its result. Times are in seconds, ``None`` without samples."""

    settings: LiveSettings
    ttft_p50: float | None
    ttft_p95: float | None
    itl_p50: float | None
    itl_p95: float | None
    tokens_per_second: float | None
    preemptions: int
    refused: int
    """Refusals with 503, and requests that are too long for the context."""
    finished: int
    max_waiting: int
    max_queued: int
    max_admitted: int
    pool_bound: bool

    @classmethod
    def of(cls, settings: LiveSettings, outcome: SimulationResult) -> Trial:
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
            max_waiting=outcome.max_waiting,
            max_queued=outcome.max_queued,
            max_admitted=outcome.max_admitted,
            pool_bound=outcome.pool_bound,
        )

    def score(self, goals: Goals) -> float:
        """How much of the tighter limit is used; above 1 a goal is missed."""
        return max((self.ttft_p95 or 0.0) / goals.ttft_p95, (self.itl_p95 or 0.0) / goals.itl_p95)

    def misses(self, goals: Goals) -> list[str]:
        """The names of the goals that are missed."""
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
class SearchResult:
    """The result of a search.

    ``tried`` holds every combination whose result is known. ``simulated`` counts the runs behind them. ``refusing``
    counts the combinations that were ruled out because their queue is sure to refuse a request.
    """

    goals: Goals
    tried: list[Trial] = field(default_factory=list)
    refusing: int = 0
    simulated: int = 0
    requests: int = 0
    """Requests served in all runs together."""

    @property
    def kept(self) -> list[Trial]:
        """The trials that reach all goals, best first."""
        return self._ranked([tried for tried in self.tried if not tried.misses(self.goals)])

    @property
    def ranked(self) -> list[Trial]:
        """The trials that reach all goals, best first; if there are none, all trials.

        In the second case those without refusals and preemptions come first, then the best scores.
        """
        kept = self.kept
        if kept:
            return kept
        return sorted(
            self.tried,
            key=lambda tried: (tried.refused > 0, tried.preemptions > 0, tried.score(self.goals), _size(tried)),
        )

    @property
    def choice(self) -> Trial | None:
        return next(iter(self.ranked), None)

    @property
    def runner_up(self) -> Trial | None:
        """The best trial that differs from the choice in slots, budget or mode, so that a comparison is useful."""
        first = self.choice
        if first is None:
            return None
        return next((tried for tried in self.ranked if _kind(tried) != _kind(first)), None)

    def _ranked(self, kept: list[Trial]) -> list[Trial]:
        """Sorted by score. Scores near the best count as equal; then smaller settings come first, pool before slots."""
        best = min((tried.score(self.goals) for tried in kept), default=0.0)
        return sorted(
            kept,
            key=lambda tried: (
                0.0 if tried.score(self.goals) <= best * NEAR else tried.score(self.goals),
                _size(tried),
            ),
        )

    def frontier(self) -> list[Trial]:
        """The Pareto frontier: trials that no other trial beats in TTFT p95, ITL p95, tokens/s and pool size at once.

        Of equal trials the smallest is kept. Trials that refuse or preempt are left out unless all do.
        """
        calm = [tried for tried in self.tried if not tried.refused and not tried.preemptions] or self.tried
        smallest: dict[tuple[float, ...], Trial] = {}
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


def _worth(tried: Trial) -> tuple[float, ...]:
    """Smaller is better in every place. Values are rounded to differences that people notice."""
    return (
        round(tried.ttft_p95 or 0.0, 2),
        round(tried.itl_p95 or 0.0, 3),
        -round(tried.tokens_per_second or 0.0),
        tried.settings.kv_tokens,
    )


def _size(tried: Trial) -> tuple[int, ...]:
    settings = tried.settings
    return settings.kv_tokens, settings.slots, settings.context, settings.queue, settings.budget


def _kind(tried: Trial) -> tuple[int, int, str]:
    return tried.settings.slots, tried.settings.budget, tried.settings.mode


def pools(slots: int, context: int, max_pool: int) -> list[int]:
    """Pool sizes to try, in tokens, smallest first. ``context`` is what the longest request needs."""
    wanted = {max(context, int(part * slots * context)) for part in POOLS}
    return sorted(-(-size // BLOCK_SIZE) * BLOCK_SIZE for size in wanted if size <= max_pool)


def search(
    run: Run,
    base: LiveSettings,
    *,
    goals: Goals,
    context: int,
    max_slots: int,
    max_pool: int,
    budgets: Sequence[int] = BUDGETS,
    modes: Iterable[str] = ("continuous",),
    on_run: Callable[[LiveSettings], None] | None = None,
) -> SearchResult:
    """Try combinations of slots, pool, queue, budget, context and the given modes.

    ``run`` simulates the traffic under one combination. ``context`` is what the longest request needs and ``max_pool``
    what the memory allows, both in tokens. ``on_run`` is called before each run.
    """
    found = SearchResult(goals)
    for mode, budget in product(modes, budgets):
        runs = _Runs(run, base.model_copy(update={"mode": mode, "budget": budget}), found, on_run)
        for slots in SLOTS:
            if slots > max_slots or (mode == "serial" and slots > 1):
                break
            for pool in pools(slots, context, max_pool):
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
    """The runs of one mode and budget. Callers must try few slots, small pools and long queues first."""

    def __init__(
        self, run: Run, base: LiveSettings, found: SearchResult, on_run: Callable[[LiveSettings], None] | None
    ) -> None:
        self._run, self._base, self._found, self._on_run = run, base, found, on_run
        self._done: list[Trial] = []

    def tried(self, slots: int, pool: int, queue: int, context: int) -> Trial | None:
        """The result of a combination, from an earlier run that cannot differ or from a new run.

        ``None`` if the combination is sure to refuse a request.
        """
        same = next((done for done in self._done if _cannot_differ(done, slots, pool, queue)), None)
        if same is not None:
            return same
        if any(_sure_to_refuse(done, slots, pool, queue) for done in self._done):
            return None
        changes = {"slots": slots, "kv_tokens": pool, "queue": queue, "context": context}
        settings = self._base.model_copy(update=changes)
        if self._on_run is not None:
            self._on_run(settings)
        tried = Trial.of(settings, self._run(settings))
        self._found.simulated += 1
        self._found.requests += tried.finished
        self._done.append(tried)
        return tried


def _cannot_differ(done: Trial, slots: int, pool: int, queue: int) -> bool:
    same_queue = queue == done.settings.queue or (not done.refused and done.max_waiting <= queue)
    return same_queue and _alike(done, slots, pool)


def _sure_to_refuse(done: Trial, slots: int, pool: int, queue: int) -> bool:
    """A run with a shorter queue is the same run until that queue overflows."""
    overflows = queue < done.settings.queue and (done.refused > 0 or done.max_queued > queue)
    return overflows and _alike(done, slots, pool)


def _alike(done: Trial, slots: int, pool: int) -> bool:
    """Whether other slots and another pool make no difference to a run."""
    before = done.settings
    same_pool = pool == before.kv_tokens or (pool > before.kv_tokens and not done.pool_bound)
    same_slots = slots == before.slots or (slots > before.slots and done.max_admitted < before.slots)
    return same_pool and same_slots


def _with(tried: Trial, **changes: int) -> Trial:
    return replace(tried, settings=tried.settings.model_copy(update=changes))
