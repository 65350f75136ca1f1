"""One sentence for each row, made of its numbers alone."""

from __future__ import annotations

from collections.abc import Sequence

from slotdeck.console.demo.result import CallResult, Result
from slotdeck.console.demo.rows import Row
from slotdeck.console.load.tally import duration

SHORT_WAIT = 0.25
"""Seconds of waiting that nobody notices."""
MUCH_HELD = 0.05
"""Share of the slots' time held by finished answers from which it is worth a word."""


def sentence(row: Row, result: Result) -> str:
    """What happened."""
    if result.requests == 0:
        return f"Nobody asked anything within {row.seconds:.0f} s: people read for 20 to 60 s between two turns."
    if result.ttft_count == 0 and result.rejected:
        return f"All {result.rejected} requests were refused with 503."
    if result.ttft_count == 0:
        return f"None of {result.requests} requests had a first word; the last failure: {result.last_error or 'none'}."
    parts = [_scene(row, result) if row.scene else _usual(row, result)]
    if result.rejected and row.scene != "promise":
        parts.append(f"{_times(result.rejected, 'request')} refused with 503, since {result.queue} already waited")
    if result.preemptions and row.scene != "pool":
        parts.append(
            f"the pool ran out {_often(result.preemptions)}: {result.recomputed_tokens or 0} tokens were computed again"
        )
    if result.errors:
        parts.append(f"{result.errors} request{'s' if result.errors > 1 else ''} failed")
    return "; ".join(parts) + "."


def comparison(rows: Sequence[Row], results: Sequence[Result | None]) -> str | None:
    """What the last row of a group got beside the first one; ``None`` where that cannot be said."""
    if len(rows) < 2 or results[0] is None or results[-1] is None:
        return None
    first, last = results[0], results[-1]
    parts = []
    if first.tokens_per_second and last.tokens_per_second:
        parts.append(f"{last.tokens_per_second / first.tokens_per_second:.1f} times the tokens/s")
    if first.ttft_p95 is not None and last.ttft_p95 is not None:
        parts.append(f"first words after {_bound(last, last.ttft_p95)} instead of {_bound(first, first.ttft_p95)}")
    if first.itl_p95 is not None and last.itl_p95 is not None:
        parts.append(f"a token every {duration(last.itl_p95)} instead of {duration(first.itl_p95)}")
    if not parts:
        return None
    return f"{rows[-1].name} beside {rows[0].name}: {', '.join(parts)} (p95)"


def _bound(result: Result, value: float | None) -> str:
    return f"{'≥ ' if result.open else ''}{duration(value)}"


def _most(result: Result) -> str:
    return f"{'at least' if result.open else 'up to'} {duration(result.wait_max)}"


def _usual(row: Row, result: Result) -> str:
    waited = (result.wait_max or 0.0) > SHORT_WAIT
    pace = f"a token came every {duration(result.itl_p50)}"
    if row.mode == "serial":
        if not waited:
            return f"One at a time, but they hardly met: nobody waited longer than {duration(result.wait_max)}, {pace}"
        return (
            f"One at a time: half of {result.wait_count} waited {duration(result.wait_p50)} or more for their turn, "
            f"the longest {_most(result)}; then {pace}"
        )
    if row.mode == "static":
        if result.held_share >= MUCH_HELD:
            return (
                f"Finished answers held {result.held_share:.0%} of the slots until the longest of their batch ended; "
                f"who came meanwhile waited {_most(result)}"
            )
        if waited:
            return f"Who came while a batch ran waited {_most(result)} for its end; {pace}"
    elif waited and result.most_running >= (result.slots or 0):
        return (
            f"All {result.slots} slots were taken at times, and who came then waited "
            f"{_most(result)}; up to {result.most_running} ran at once, {pace}"
        )
    return f"Up to {result.most_running} ran at once and nobody waited longer than {duration(result.wait_max)}; {pace}"


def _scene(row: Row, result: Result) -> str:
    calls: dict[str, list[CallResult]] = {}
    for call in result.calls:
        calls.setdefault(call.role, []).append(call)
    return {
        "blocked": _blocked, "slowest": _slowest, "stutter": _stutter, "pool": _pool, "promise": _promise,
    }[row.scene or ""](row, result, calls)  # fmt: skip


Calls = dict[str, list[CallResult]]


def _blocked(_row: Row, _result: Result, calls: Calls) -> str:
    [long] = calls["long"]
    firsts = _firsts(calls["short"])
    return (
        f"One answer of {long.tokens} tokens ran {_ran(long)}; the four who came a second later "
        f"had their first word after {firsts}"
    )


def _slowest(row: Row, _result: Result, calls: Calls) -> str:
    [long], [newcomer] = calls["long"], calls["newcomer"]
    ends = sorted(call.at + call.seconds for call in calls["short"] if call.seconds is not None)
    done = f"{duration(ends[0])} to {duration(ends[-1])}" if ends else duration(None)
    came = f"who came after {newcomer.at:.0f} s had the first word {_first(newcomer)} later"
    if row.mode == "static":
        freed = "held their slots while the long one ran,"
    else:
        freed = "left their slots one by one; the long one ran"
    return f"The short answers were done after {done} and {freed} {_ran(long)}; {came}"


def _stutter(row: Row, result: Result, calls: Calls) -> str:
    gaps = [call.longest_gap for call in calls["reader"] if call.longest_gap is not None]
    [newcomer] = calls["newcomer"]
    prompt = next(call.prompt for call in row.calls if call.role == "newcomer")
    pieces = "in one step" if (result.budget or 0) >= prompt else f"in pieces of {result.budget}"
    return (
        f"While about {prompt} tokens were read {pieces}, those who watched text stream saw it stand still for up to "
        f"{duration(max(gaps, default=None))}; the newcomer's first word came after {_first(newcomer)}"
    )


def _pool(_row: Row, result: Result, calls: Calls) -> str:
    gaps = [call.longest_gap for call in calls["reader"] if call.longest_gap is not None]
    pause = duration(max(gaps, default=None))
    if result.preemptions:
        return (
            f"The pool of {result.kv_tokens} tokens ran out {_often(result.preemptions)}: "
            f"{result.recomputed_tokens or 0} tokens were computed again, and somebody's text stood still for {pause}"
        )
    return f"The pool of {result.kv_tokens} tokens held all of them: no preemption, the longest pause was {pause}"


def _promise(_row: Row, result: Result, calls: Calls) -> str:
    askers = calls["asker"]
    served = [call.ttft for call in askers if call.ttft is not None]
    waiting = [call.open for call in askers if call.open is not None]
    last = duration(max(served, default=None))
    parts = [f"Of {len(askers)} who asked at once {len(served)} had a first word within {last}"]
    if waiting:
        parts.append(f"{len(waiting)} still waited after {duration(max(waiting))}")
    if result.rejected:
        parts.append(f"{result.rejected} were refused at once and could go elsewhere")
    return ", ".join(parts)


def _firsts(calls: list[CallResult]) -> str:
    values = sorted(value for call in calls if (value := call.ttft or call.open) is not None)
    if not values:
        return duration(None)
    bound = "≥ " if any(call.open is not None for call in calls) else ""
    return f"{bound}{duration(values[0])} to {duration(values[-1])}"


def _first(call: CallResult) -> str:
    return f"≥ {duration(call.open)}" if call.ttft is None else duration(call.ttft)


def _ran(call: CallResult) -> str:
    return "beyond the end of the act" if call.seconds is None else f"for {duration(call.seconds)}"


def _often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _times(count: int, word: str) -> str:
    return f"{count} {word} was" if count == 1 else f"{count} {word}s were"
