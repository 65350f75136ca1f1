"""Made-up results of a demo, and its state at two points."""

from __future__ import annotations

import dataclasses

from slotdeck.console.demo.result import Result
from slotdeck.console.demo.rows import usual_rows
from slotdeck.console.demo.state import DemoState


def result(**values: object) -> Result:
    usual = Result(
        seconds=20, requests=8, answered=7, ttft_p50=0.4, ttft_p95=1.2, ttft_max=1.5, ttft_count=8, itl_p50=0.02,
        itl_p95=0.03, itl_max=0.2, itl_count=700, wait_p50=0.1, wait_p95=0.9, wait_max=1.1, wait_count=8,
        tokens_per_second=61.0, preemptions=0, recomputed_tokens=0, most_running=4, slots=4, queue=16,
    )  # fmt: skip
    return dataclasses.replace(usual, **values)  # type: ignore[arg-type]


def made(*, ended: bool) -> DemoState:
    """The state of a demo in its second row, or at its end."""
    state = DemoState()
    rows = usual_rows((5, 20), ("agent",), ("serial", "static", "continuous"), 20)
    state.apply({"event": "plan", "rows": [dataclasses.asdict(row) for row in rows], "engine": {"model": "tiny"}})
    for index in range(len(rows) if ended else 2):
        state.apply({"event": "row", "row": index})
        state.apply({"event": "status", "text": "5 agents: serial"})
        for second in range(1, 21 if ended or index == 0 else 8):
            sample = {"at": float(second), "tokens": 50.0 + second, "ttft": 0.3 if second % 4 == 0 else None,
                      "gap": 0.02 * (1 + second % 3), "waiting": 1}  # fmt: skip
            numbers = dataclasses.asdict(result(open=index, tokens_per_second=50.0 + index))
            state.apply({"event": "sample", "row": index, "sample": sample, "result": numbers})
        if ended or index == 0:
            numbers = dataclasses.asdict(result(open=index, sentence="All 4 slots were taken at times."))
            state.apply({"event": "result", "row": index, "result": numbers})
    if ended:
        state.apply({"event": "end", "how": "done", "text": "done; the settings are as they were", "files": []})
    return state
