"""The doctor: each rule on frames that show its cause, and silence when all is well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotdeck.console.advice.doctor import RULES, diagnose
from slotdeck.console.advice.finding import Finding
from slotdeck.console.advice.window import Window, seconds_since_change
from slotdeck.engine.telemetry.frame import (
    CounterInfo,
    EngineInfo,
    Frame,
    FrameEvent,
    HostInfo,
    LimitInfo,
    PoolInfo,
    SlotInfo,
    WindowInfo,
)
from tests.support.doctor_frames import QUEUED, START, WELL, frame, full, run, slot, waiting


def only(frames: list[Frame], rule: str) -> Finding:
    return only_of(diagnose(frames), rule)


def only_of(findings: list[Finding], rule: str) -> Finding:
    (finding,) = findings
    assert finding.rule == rule
    assert finding.title
    assert finding.remedy
    assert finding.explanation.endswith(".")
    assert all(any(c.isdigit() for c in line) for line in finding.evidence[:1])
    return finding


def test_silent_when_all_is_well() -> None:
    assert diagnose(run()) == []
    assert diagnose([frame()]) == []
    assert diagnose([]) == []


def test_silent_about_an_engine_that_knows_nothing() -> None:
    """An adapter of another server leaves most of a frame unknown."""
    bare = Frame(
        boot_id="x", sequence=1, time=START, engine=EngineInfo(), limits=LimitInfo(), pool=PoolInfo(),
        counters=CounterInfo(), minute=WindowInfo(seconds=60), ten_minutes=WindowInfo(seconds=600), host=HostInfo(),
    )  # fmt: skip
    assert diagnose([bare, bare]) == []


def test_whatever_is_unknown_it_says_what_is_known() -> None:
    """Everything is wrong at once, and each field in turn, then each part as a whole, is not known."""
    late = {"wait_p95": 40.0, "ttft_p95": 90.0, "itl_p50": 0.4, "itl_p95": 3.0, "itl_max": 9.0}
    host = HostInfo(os_swap_in=40e6, os_swap_out=8e6, memory_total=1, memory_used=1, memory_pressure=50)
    slots = (*full(2), slot(2, "preempted", preemptions=1, stalled=3.0), slot(3, "prefill", prompt_tokens=900))
    counters = dict.fromkeys(("rejected", "received", "too_long", "preemptions", "gave_up_waiting", "failed"))
    bad = run(
        late=late, host=host, slots=slots, waiting_count=9, waiting=waiting(9, 35.0, 20.0),
        counters=lambda i: dict.fromkeys(counters, i), limits=LimitInfo(slots=4, context=64, queue=16, budget=512),
    )  # fmt: skip
    assert len(diagnose(bad)) >= 5

    def ask(frames: list[Frame]) -> None:
        for rule in RULES:  # each by itself: in a diagnosis one may silence another
            rule(Window(frames))

    for part in ("engine", "limits", "pool", "counters", "host", "minute"):
        kind = type(getattr(bad[0], part))
        needed = {"seconds": 60.0} if part == "minute" else {}
        bare = kind(**needed)
        ask([one.model_copy(update={part: bare}) for one in bad])
        for name in kind.model_fields:
            known = getattr(bad[0], part).model_copy(update={name: getattr(bare, name)})
            ask([one.model_copy(update={part: known}) for one in bad])
    ask([one.model_copy(update={"slots": (), "waiting": (), "waiting_count": None}) for one in bad])


def test_few_samples_are_no_evidence() -> None:
    late = {"wait_p95": 9.0, "ttft_p95": 9.5, "wait_count": 3, "ttft_count": 3, "itl_p50": 0.9, "itl_count": 20}
    assert diagnose(run(late=late, slots=full(), waiting_count=3, waiting=waiting(3, 9.0, None))) == []


def test_queue_bound_names_more_slots() -> None:
    finding = only(run(**QUEUED, pool=PoolInfo(total=16_384, live=2000, block_size=16)), "queue")
    assert (finding.changes, finding.remedy) == ({"slots": 7}, "slots 4 → 7")
    assert finding.cost == 57, "three people waited in each of 19 seconds"
    assert "4.2 s" in finding.evidence[0]
    assert "up to 3 requests waited" in finding.evidence[1]


def test_queue_bound_with_a_full_pool_asks_for_the_pool_first() -> None:
    finding = only(run(**QUEUED, pool=PoolInfo(total=8192, live=8000, block_size=16)), "queue")
    assert finding.changes == {"kv_tokens": 14_336, "slots": 7}
    assert "with slots 4 → 7" in finding.remedy


def test_no_pool_is_asked_for_that_the_memory_does_not_hold() -> None:
    pool = PoolInfo(total=8192, live=8000, block_size=16, bytes_per_token=1 << 20)
    host = HostInfo(memory_total=16 << 30, memory_used=15 << 30)
    finding = only(run(**QUEUED, pool=pool, host=host), "queue")
    assert finding.changes == {}
    assert "there is no memory for a larger pool" in finding.remedy


def test_no_more_slots_when_text_is_slow_already() -> None:
    late = QUEUED["late"] | {"itl_p50": 0.3, "itl_p95": 0.4}
    findings = {finding.rule: finding for finding in diagnose(run(**(QUEUED | {"late": late})))}
    assert findings["queue"].changes == {}
    assert findings["decode"].changes == {"slots": 2}


@pytest.mark.parametrize("mode", ["serial", "static"])
def test_a_mode_that_makes_them_wait_is_the_cause(mode: str) -> None:
    limits = LimitInfo(slots=4, context=2048, queue=16, budget=64, mode=mode)
    slots = (slot(0), *(slot(i, "idle" if mode == "serial" else "held") for i in (1, 2, 3)))
    finding = only(run(**(QUEUED | {"limits": limits, "slots": slots})), "queue")
    assert finding.changes == {"mode": "continuous"}
    assert mode in finding.remedy


REFUSING: dict[str, Any] = {
    "counters": lambda i: {"rejected": 2 * i, "received": 3 * i, "finished": i // 2}, "slots": full(),
}  # fmt: skip


def test_refusals_by_load_ask_for_slots_then_for_a_longer_queue() -> None:
    limits = LimitInfo(slots=4, context=2048, queue=2, budget=64)
    more = {"limits": limits, "waiting_count": 2, "waiting": waiting(2, 1.0)}
    event = FrameEvent(time=START + 3, kind="rejected", text="phone refused", user="phone")
    events: Callable[[int], tuple[FrameEvent, ...]] = lambda i: (event,) if i == 3 else ()  # noqa: E731
    finding = only(run(**REFUSING, **more, events=events, pool=PoolInfo(total=16_384, live=2000)), "refused")
    assert (finding.changes, finding.title) == ({"slots": 8}, "The queue is full")
    assert finding.evidence[0] == "38 of 57 requests were refused with 503, from phone"
    full_pool = PoolInfo(total=8192, live=8000, block_size=16, bytes_per_token=1 << 20)
    small = HostInfo(memory_total=16 << 30, memory_used=15 << 30)
    assert only(run(**REFUSING, **more, pool=full_pool, host=small), "refused").changes == {"queue": 3}


def test_who_gave_up_waiting_did_not_move_the_queue_on() -> None:
    """A request that gives up waiting counts as cancelled too, but it never held a slot."""
    limits = LimitInfo(slots=4, context=2048, queue=3, budget=64)
    counters: Callable[[int], dict[str, int]] = lambda i: {  # noqa: E731
        "rejected": i, "received": 4 * i, "finished": i // 2, "cancelled": i + i // 4, "gave_up_waiting": i,
    }  # fmt: skip
    finding = only(run(slots=full(), waiting_count=3, limits=limits, counters=counters), "refused")
    # 19 s of work, 9 finished and 23 cancelled requests, 19 of which had only waited.
    assert "it moves forward every 1.5 s" in finding.evidence[1]
    assert finding.cost == pytest.approx(19 * 3 * 19 / 13)


def test_a_queue_of_none_refuses_on_purpose_and_a_slow_one_too() -> None:
    none = LimitInfo(slots=4, context=2048, queue=0, budget=64)
    finding = only(run(**REFUSING, limits=none), "refused")
    assert "because the queue is set to 0" in finding.title
    slow = REFUSING | {"counters": lambda i: {"rejected": i, "received": i, "finished": int(i > 10)}}
    finding = only(run(**slow, limits=LimitInfo(slots=4, context=2048, queue=8, budget=64)), "refused")
    assert "a longer queue would not help" in finding.explanation
    assert "queue" not in finding.changes
    assert diagnose(run(**REFUSING, limits=none, health="draining")) == []


def test_waiting_beside_free_slots_is_the_pool() -> None:
    finding = only(run(**(QUEUED | {"slots": (slot(0), *(slot(i, "idle") for i in (1, 2, 3)))})), "queue")
    assert finding.title == "Requests wait for room in the KV pool"


def test_prefill_bound_raises_the_budget_where_streams_have_room() -> None:
    late = {"ttft_p95": 6.0, "wait_p95": 0.2}
    finding = only(run(late=late, slots=(slot(0, prompt_tokens=6000, prefill=5.5),)), "prefill")
    assert (finding.changes, finding.remedy) == ({"budget": 128}, "budget 64 → 128")
    assert any("1 of 1 requests took about 5.5 s to read 6000 prompt tokens" in line for line in finding.evidence)
    finding = only(run(late=late | {"itl_p95": 0.25, "itl_p50": 0.1}), "prefill")
    assert finding.changes == {}


def test_prefill_bound_without_a_prefix_cache_turns_it_on() -> None:
    late = {"ttft_p95": 6.0, "wait_p95": 0.2}
    limits = LimitInfo(slots=4, context=8192, queue=16, budget=64, prefix_cache=False)
    finding = only(run(late=late, limits=limits, counters=lambda i: {"prompt_tokens": 500 * i}), "prefill")
    assert finding.changes == {"prefix_cache": True}
    assert "0% of the prompt tokens came from the prefix cache, which is off" in finding.evidence
    target = LimitInfo(slots=4, context=8192, queue=16, budget=64, prefix_cache=True, itl_target=60)
    assert only(run(late=late, limits=target), "prefill").changes == {"itl_target": 120}


def test_a_budget_whose_steps_are_long_already_is_not_raised() -> None:
    limits = LimitInfo(slots=4, context=8192, queue=16, budget=512)
    slots = (slot(0, prompt_tokens=6000, prefill=5.5),)
    bound = run(late={"ttft_p95": 6.0}, slots=slots, limits=limits)
    assert only(bound, "prefill").changes == {}
    short = [one.model_copy(update={"counters": CounterInfo(steps=20 * i)}) for i, one in enumerate(bound)]
    assert only(short, "prefill").changes == {"budget": 2048}, "other prompts took their part of each step"


def test_decode_bound_names_fewer_slots() -> None:
    finding = only(run(late={"itl_p50": 0.4, "itl_p95": 0.5}, slots=full(4)), "decode")
    assert (finding.changes, finding.remedy) == ({"slots": 2}, "slots 4 → 2")
    assert finding.cost == pytest.approx(4 * 19 / 2)
    alone = only(run(late={"itl_p50": 0.4, "itl_p95": 0.5}, slots=full(1)), "decode")
    assert alone.changes == {}


def test_prompts_that_make_streams_stutter_lower_the_budget() -> None:
    limits = LimitInfo(slots=4, context=2048, queue=16, budget=512)
    long = slot(1, "prefill", prompt_tokens=1500)
    streams: Callable[[int], tuple[SlotInfo, ...]] = lambda i: (slot(0, output_tokens=9 * i), long)  # noqa: E731
    finding = only(run(late={"itl_p95": 0.6}, slots=streams, limits=limits), "budget")
    assert (finding.changes, finding.remedy) == ({"budget": 128}, "budget 512 → 128")


def test_a_stutter_too_rare_for_the_percentile_is_seen_in_the_streams() -> None:
    """Text stands still for two seconds in ten, which is one gap of thousands."""
    limits = LimitInfo(slots=4, context=2048, queue=16, budget=2048)

    def slots(i: int) -> tuple[SlotInfo, ...]:
        tenth, second = divmod(i, 10)
        written = 100 * tenth + 12 * max(0, second - 2)
        return (slot(0, output_tokens=written), slot(1, "prefill" if second < 2 else "idle", prompt_tokens=1500))

    finding = only(run(60, slots=slots, limits=limits), "budget")
    assert finding.changes["budget"] <= 1024
    assert only(run(60, slots=slots, limits=limits), "budget").cost == pytest.approx(12, abs=2)
    calm = [slots(i)[0].model_copy(update={"output_tokens": 20 * i}) for i in range(60)]
    assert diagnose(run(60, slots=lambda i: (calm[i], slots(i)[1]), limits=limits)) == []


def test_pauses_shorter_than_a_frame_show_in_the_longest_gap_and_the_prefill() -> None:
    limits = LimitInfo(slots=4, context=2048, queue=16, budget=4096)

    def slots(i: int) -> tuple[SlotInfo, ...]:
        reads = i % 5 == 0
        long = slot(1, "prefill", request_id=f"l{i}", prompt_tokens=1000, prefill=None, age=0.4, ttft=None)
        return (slot(0, output_tokens=60 * i), long if reads else slot(1, "idle"))

    finding = only(run(60, slots=slots, limits=limits, late={"itl_max": 0.5}), "budget")
    assert "up to 400 ms appear while a prompt is read" in finding.evidence[0]
    assert finding.changes == {"budget": 256}
    assert diagnose(run(60, slots=slots, limits=limits, late={"itl_max": 0.1})) == []


def test_preempting_counts_the_work_done_twice() -> None:
    hit = slot(3, "preempted", preemptions=2, stalled=12.5, blocks=0)
    finding = only(
        run(
            counters=lambda i: {"preemptions": i // 5, "recomputed_tokens": 300 * (i // 5), "prompt_tokens": 200 * i},
            slots=(*full(3, blocks=160), hit),
            pool=PoolInfo(total=8192, live=8100, block_size=16),
            late={"itl_p95": 0.9},
        ),
        "preemption",
    )
    assert finding.level == "critical"
    assert "3 preemptions; 900 tokens were computed a second time, 24% of all prefill" in finding.evidence[0]
    assert "one stood still for 12.5 s" in finding.evidence[1]
    assert (finding.changes, finding.remedy[:11]) == ({"slots": 3}, "slots 4 → 3")


def test_preempting_with_memory_to_spare_enlarges_the_pool() -> None:
    pool = PoolInfo(total=8192, live=8100, block_size=16, bytes_per_token=23_040)
    finding = only(run(counters=lambda i: {"preemptions": i}, slots=full(4, blocks=160), pool=pool), "preemption")
    assert finding.changes == {"kv_tokens": 11_264}
    assert "or slots 4 → 3" in finding.remedy


def test_old_preemptions_are_no_news() -> None:
    assert diagnose(run(counters={"preemptions": 40, "recomputed_tokens": 9000, "too_long": 3})) == []


def test_a_queue_behind_preemptions_never_asks_for_more_slots() -> None:
    findings = diagnose(run(**QUEUED, counters=lambda i: {"preemptions": i}))
    assert {finding.rule for finding in findings} == {"preemption", "queue"}
    assert all("slots 4 → 7" not in finding.remedy for finding in findings)


def test_os_swap_explains_slow_text_and_comes_first() -> None:
    host = HostInfo(memory_total=8 << 30, memory_used=8 << 30, os_swap_in=40e6, os_swap_out=8e6, memory_pressure=45.0)
    frames = run(late={"itl_p50": 0.9, "itl_p95": 3.0}, host=host, slots=full())
    finding = only(frames, "os_swap")
    assert finding.level == "critical"
    assert "48 MB/s" in finding.evidence[0]
    assert diagnose(run(host=lambda i: host if i == 3 else frame().host)) == []


def test_a_queue_too_deep_to_honour() -> None:
    frames = run(
        slots=full(), waiting_count=12, waiting=waiting(12, 35.0, 6.0),
        limits=LimitInfo(slots=4, context=2048, queue=512, budget=64),
        counters=lambda i: {"gave_up_waiting": i // 6},
    )  # fmt: skip
    finding = only(frames, "deep_queue")
    assert (finding.changes, finding.remedy) == ({"queue": 5}, "queue 512 → 5")
    assert "512" in finding.evidence[0]
    assert "3 gave up" in finding.evidence[1]


def test_context_too_small() -> None:
    event = FrameEvent(time=START + 3, kind="too_long", text="laptop refused", user="laptop")
    counters: Callable[[int], dict[str, int]] = lambda i: {"too_long": int(i >= 3)}  # noqa: E731
    events: Callable[[int], tuple[FrameEvent, ...]] = lambda i: (event,) if i == 3 else ()  # noqa: E731
    finding = only(run(counters=counters, events=events), "context")
    assert (finding.changes, finding.remedy) == ({"context": 4096}, "context 2048 → 4096")
    assert "from laptop" in finding.evidence
    most = LimitInfo(slots=4, context=8192, queue=16, budget=64)
    finding = only(run(counters=counters, limits=most), "context")
    assert (finding.changes, finding.remedy[:26]) == ({}, "keep conversations shorter")


def test_cold_starts_by_restart_and_by_quiet() -> None:
    restarted = [frame(i, boot_id="one" if i < 10 else "two", running=2 * (i != 9)) for i in range(20)]
    finding = only(restarted, "cold_start")
    assert "the engine restarted once within 19.0 s" in finding.evidence[0]
    quick = EngineInfo(trained_context=8192, load_seconds=0.02)
    assert diagnose([one.model_copy(update={"engine": quick}) for one in restarted]) == [], "it cost nobody anything"
    often = [frame(i, boot_id=f"boot {i // 5}", running=2 * (i % 5 != 4), engine=quick) for i in range(15)]
    assert "restarted 2 times" in only(often, "cold_start").evidence[0]

    def slots(i: int) -> tuple[SlotInfo, ...]:
        if i < 20:
            return full(3)
        if i < 100:
            return ()
        return (slot(0, request_id="late", ttft=7.5, age=float(i - 98)),)

    finding = only(run(120, slots=slots, running=lambda i: len(slots(i))), "cold_start")
    assert "7.5 s" in finding.evidence[0]


def test_faults_are_told_with_their_reason() -> None:
    reason = "3 steps in a row failed"
    finding = only(run(health="fault", health_reason=reason, counters=lambda i: {"failed": i}), "fault")
    assert reason in finding.evidence


def test_an_engine_that_ended_while_it_served_is_named() -> None:
    finding = only_of(diagnose(run(5), engine_gone=True), "died")
    assert finding.level == "critical"
    assert "2 requests in flight, memory 50% full" in finding.evidence[0]
    restarted = [*run(5), *[frame(30 + i, boot_id="two") for i in range(5)]]
    assert [found.rule for found in diagnose(restarted)] == ["died", "cold_start"]
    for said in ({"health": "draining"}, {"running": 0}):
        assert diagnose([*run(5), frame(5, **said)], engine_gone=True) == [], "it was stopped, or nobody lost anything"


def test_what_was_wrong_before_a_restart_is_told_but_not_turned() -> None:
    waits = {"late": {"wait_p95": 4.2, "ttft_p95": 5.0}, "slots": full(), "waiting_count": 3}
    before = [*run(60, **waits), frame(60, **(waits | {"running": 0, "waiting_count": 0}))]
    quick = EngineInfo(trained_context=8192, load_seconds=0.02)
    after = [frame(90 + i, boot_id="two", engine=quick) for i in range(20)]
    finding = only([*before, *after], "queue")
    assert "before the restart at" in finding.evidence[-1]
    assert not finding.changes
    still = [frame(90 + i, boot_id="two", engine=quick, **waits) for i in range(60)]
    assert only([*before, *still], "queue").changes, "what holds now comes first"


def test_the_worst_comes_first_then_what_costs_most() -> None:
    late = {"wait_p95": 4.2, "ttft_p95": 5.0, "itl_p50": 0.21, "itl_p95": 0.3}
    host = HostInfo(os_swap_in=40e6, os_swap_out=8e6)
    waits = {"slots": full(), "waiting_count": 9, "waiting": waiting(9, 4.0, None)}
    findings = diagnose(run(late=late, **waits, counters={"too_long": 0}))
    assert [finding.rule for finding in findings] == ["queue", "decode"]
    assert [round(finding.cost or 0) for finding in findings] == [171, 4]
    findings = diagnose(run(late=late, **waits, counters=lambda i: {"too_long": i}))
    assert [finding.rule for finding in findings] == ["context", "queue", "decode"]
    findings = diagnose(run(late=late, **waits, host=host))
    assert [finding.rule for finding in findings] == ["os_swap", "queue"]


def test_a_change_is_judged_by_what_came_after_it_once_there_is_enough() -> None:
    before = {"late": {"wait_p95": 4.2, "ttft_p95": 5.0}, "slots": full(), "waiting_count": 3}
    after = LimitInfo(revision=1, slots=8, context=2048, queue=16, budget=64)
    old = run(80, **before)
    young = [frame(80 + i, limits=after, late=before["late"]) for i in range(30)]
    assert {finding.rule for finding in diagnose([*old, *young])} == {"queue"}
    assert seconds_since_change([*old, *young]) == 29
    settled = [frame(80 + i, limits=after) for i in range(70)]
    stale = {"wait_p95": 4.2, "ttft_p95": 5.0}
    long = WindowInfo(seconds=600, **(WELL | stale))
    assert diagnose([*old, *(one.model_copy(update={"ten_minutes": long}) for one in settled)]) == []
    assert seconds_since_change([*old, *settled]) is None
    assert {finding.rule for finding in diagnose([*old[:20], *young])} == {"queue"}, "what was before, however short"


def test_every_rule_has_its_test() -> None:
    names = {rule.__name__ for rule in RULES}
    tested = Path(__file__).read_text()
    untested = {name for name in names if f'"{name}")' not in tested and f'"{name}",' not in tested}
    assert not untested, "write a test for each of these rules in this file"


def test_advice_that_was_followed_or_passed_since_is_in_force() -> None:
    more = Finding("queue", "warn", "", (), "slots 4 → 8", "", {"slots": 8}, before={"slots": 4})
    assert [more.in_force(LimitInfo(slots=slots)) for slots in (4, 6, 8, 20)] == [False, False, True, True]
    less = Finding("budget", "warn", "", (), "budget 512 → 64", "", {"budget": 64}, before={"budget": 512})
    assert [less.in_force(LimitInfo(budget=budget)) for budget in (512, 64, 32)] == [False, True, True]
    mode = Finding("mode", "warn", "", (), "mode → continuous", "", {"mode": "continuous"}, before={"mode": "serial"})
    assert [mode.in_force(LimitInfo(mode=name)) for name in ("serial", "static", "continuous")] == [False, False, True]
