"""The state of a demonstration, built from the events of its runner in this or another process."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from slotdeck.console.demo.result import CallResult, Result
from slotdeck.console.demo.rows import SWITCH_SECONDS, Row

Event = dict[str, Any]
"""``event`` names it: plan, status, row, sample, result, end. Plain JSON."""

ENDINGS = {
    "done": "done; your settings are restored",
    "stopped": "stopped before the end; your settings are restored",
}
"""The text for an end without a failure."""


@dataclass(frozen=True)
class Sample:
    """One second of a row. ``None`` if nothing of that kind happened in this second."""

    at: float
    tokens: float | None
    """Per second."""
    ttft: float | None
    """The longest of this second, in seconds."""
    gap: float | None
    """The longest gap between two tokens of this second."""
    waiting: int


@dataclass
class DemoState:
    """``results[i]`` belongs to ``rows[i]``. The result of the running row is updated every second."""

    rows: list[Row] = field(default_factory=list)
    results: list[Result | None] = field(default_factory=list)
    samples: list[list[Sample]] = field(default_factory=list)
    at: int | None = None
    """The index of the running row."""
    status: str = ""
    ended: Literal["", "done", "stopped", "failed"] = ""
    end_text: str = ""
    engine: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        """Update the state with an event."""
        kind = event["event"]
        if kind == "plan":
            self.rows = [row_of(row) for row in event["rows"]]
            self.results = [None] * len(self.rows)
            self.samples = [[] for _ in self.rows]
            self.engine = event.get("engine", {})
        elif kind == "status":
            self.status = event["text"]
        elif kind == "row":
            self.at = event["row"]
        elif kind == "sample":
            self.samples[event["row"]].append(Sample(**event["sample"]))
            self.results[event["row"]] = result_from(event["result"])
        elif kind == "result":
            self.results[event["row"]] = result_from(event["result"])
        elif kind == "end":
            self.at = None
            self.ended, self.end_text = event["how"], event["text"]
            self.files = event.get("files", [])

    @property
    def running(self) -> bool:
        """True after the beginning and before the end."""
        return bool(self.rows) and not self.ended

    def done(self, index: int) -> bool:
        """True if the row has its final numbers."""
        result = self.results[index]
        return result is not None and bool(result.sentence)

    @property
    def seconds_left(self) -> float:
        """How long it still takes, approximately."""
        left = 0.0
        for index, row in enumerate(self.rows):
            if not self.done(index):
                passed = self.samples[index][-1].at if self.samples[index] else 0.0
                left += max(0.0, row.seconds - passed) + SWITCH_SECONDS
        return left if self.running else 0.0

    @property
    def share_done(self) -> float:
        """The part that is done, 0 to 1."""
        total = sum(row.seconds + SWITCH_SECONDS for row in self.rows)
        return 1.0 - self.seconds_left / total if total else 0.0


def row_of(document: dict[str, Any]) -> Row:
    """A row from JSON, without its scripted requests."""
    return Row(**{name: document[name] for name in ("group", "name", "users", "mode", "seconds", "who", "scene")})


def result_from(document: dict[str, Any]) -> Result:
    """A result from JSON; unknown fields are ignored."""
    known = {entry.name for entry in fields(Result)}
    values = {name: value for name, value in document.items() if name in known}
    values["calls"] = [CallResult(**call) for call in document.get("calls", ())]
    return Result(**values)
