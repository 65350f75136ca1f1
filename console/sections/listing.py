"""Which requests are listed, in which order, and which one is selected. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slotdeck.console.drawing.scrolling import moved
from slotdeck.engine.telemetry.frame import Frame, SlotInfo, WaitingInfo


def _number(value: float | None) -> float:
    return -1.0 if value is None else float(value)


SORTS: dict[str, tuple[Callable[[SlotInfo], float | str], bool]] = {
    "slot": (lambda slot: slot.slot, False),
    "state": (lambda slot: slot.state, False),
    "who": (lambda slot: (slot.user or "").casefold(), False),
    "prompt": (lambda slot: _number(slot.prompt_tokens), True),
    "output": (lambda slot: _number(slot.output_tokens), True),
    "TTFT": (lambda slot: _number(slot.ttft), True),
    "ITL p95": (lambda slot: _number(slot.itl_p95), True),
    "stalled": (lambda slot: _number(slot.stalled), True),
    "age": (lambda slot: _number(slot.age), True),
}
"""Columns to sort by and whether the largest comes first. Idle slots always come last, except by slot."""


@dataclass(frozen=True)
class Cursor:
    """What is selected: a slot by its number, or a waiting request by its id."""

    slot: int | None = None
    request_id: str | None = None


@dataclass(frozen=True)
class ListState:
    """What the admin selected, filtered and sorted."""

    cursor: Cursor | None = None
    offset: int = 0
    """Slots hidden above the visible ones."""
    wanted: str = ""
    """The text of the filter."""
    sort: str = "slot"


@dataclass(frozen=True)
class Listing:
    """The requests to list, and the place of the selected one counted over slots and waiting requests."""

    slots: tuple[SlotInfo, ...]
    waiting: tuple[WaitingInfo, ...]
    selected: int | None

    @property
    def selected_slot(self) -> int | None:
        """Place among the slots."""
        return self.selected if self.selected is not None and self.selected < len(self.slots) else None

    @property
    def selected_waiting(self) -> int | None:
        """Place among the waiting requests."""
        if self.selected is None or self.selected < len(self.slots):
            return None
        return self.selected - len(self.slots)

    @property
    def row(self) -> SlotInfo | WaitingInfo | None:
        """The selected slot or waiting request."""
        if self.selected is None:
            return None
        slots = len(self.slots)
        return self.slots[self.selected] if self.selected < slots else self.waiting[self.selected - slots]

    def cursor_at(self, place: int) -> Cursor | None:
        """The cursor on that place, or on the nearest there is."""
        count = len(self.slots) + len(self.waiting)
        if not count:
            return None
        place = moved(place, 0, count)
        if place < len(self.slots):
            return Cursor(slot=self.slots[place].slot)
        return Cursor(request_id=self.waiting[place - len(self.slots)].request_id)


def listing(frame: Frame, choice: ListState) -> Listing:
    """Filter, sort, and find the selected row again. A selected waiting request is followed into its slot."""
    text = choice.wanted.casefold()
    slots = [slot for slot in frame.slots if not text or _matches(text, slot.user, slot.state, slot.request_id)]
    waiting = [
        waiter for waiter in frame.waiting if not text or _matches(text, waiter.user, "waiting", waiter.request_id)
    ]
    if choice.sort != "slot":
        key, largest_first = SORTS[choice.sort]
        busy = sorted((slot for slot in slots if slot.state != "idle"), key=key, reverse=largest_first)
        slots = busy + [slot for slot in slots if slot.state == "idle"]
    return Listing(tuple(slots), tuple(waiting), _find(choice.cursor, slots, waiting))


def _matches(text: str, user: str | None, state: str, request_id: str | None) -> bool:
    return any(text in word.casefold() for word in (user or "", state, request_id or ""))


def _find(cursor: Cursor | None, slots: list[SlotInfo], waiting: list[WaitingInfo]) -> int | None:
    if cursor is None:
        return None
    for place, slot in enumerate(slots):
        if slot.slot == cursor.slot or (cursor.request_id is not None and slot.request_id == cursor.request_id):
            return place
    for place, waiter in enumerate(waiting, len(slots)):
        if waiter.request_id == cursor.request_id:
            return place
    return None
