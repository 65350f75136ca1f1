"""The Live screen: who is served, what is full, who waits, is it smooth.

:func:`compose_live` is a pure function from a view to lines; the page only keeps what is selected and how it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slotdeck.console.drawing.cells import UNKNOWN, Line, beside, blank, exact, plain
from slotdeck.console.keys.actions import Command
from slotdeck.console.pages.context import PageContext
from slotdeck.console.pages.layout import Chrome, banner, framed, status_lines
from slotdeck.console.pages.page import Page, list_handlers
from slotdeck.console.sections.events import event_lines
from slotdeck.console.sections.first_run import first_run_lines
from slotdeck.console.sections.header import grid_lines, title_line
from slotdeck.console.sections.latency import latency_lines
from slotdeck.console.sections.listing import SORTS, Choice, Listing, listing
from slotdeck.console.sections.plots import plot_lines
from slotdeck.console.sections.slot_timeline import timeline_lines
from slotdeck.console.sections.slots import row, table, table_offset
from slotdeck.console.sections.waiting import waiting_lines
from slotdeck.console.session.prompts import TextPrompt
from slotdeck.console.state.store import View
from slotdeck.engine.telemetry.frame import Frame, SlotInfo, WaitingInfo

WIDE = 112
"""Columns from which latency detail, plots and the event log stand beside the slots."""

BUSY_WAITING_ROWS = 2
"""Waiting requests that are always shown, even when slots must scroll for it."""

PLOT_ROWS_LOW, PLOT_ROWS_HIGH = 12, 17
"""Rows of the plots beside the slots: five plots of two or of three rows, heading and marks."""

ZOOMED_PLOT_ROWS = 22

MIN_TIMELINE_ROWS = 3

ZOOMS = ("", "slots", "plots", "timeline", "events")
"""What takes the whole body in turn; the first is all of them together."""


@dataclass(frozen=True)
class LiveState:
    """What the admin chose on the Live screen."""

    choice: Choice = field(default_factory=Choice)
    zoom: str = ""


_PLAIN = LiveState()


def compose_live(view: View, chrome: Chrome, cells: int, rows: int, state: LiveState = _PLAIN) -> list[Line]:
    """The whole screen: exactly ``rows`` lines of exactly ``cells`` cells."""
    top = [title_line(view, cells), *_grid(view, cells, rows), banner(view, chrome, cells)]
    return framed(top, lambda left: live_body(view, chrome, cells, left, state), chrome, cells, rows)


def body_rows(view: View, chrome: Chrome, cells: int, rows: int) -> int:
    """Rows between the lines above and the status line of such a screen."""
    return max(0, rows - 2 - len(_grid(view, cells, rows)) - len(status_lines(chrome, cells)) - 1 - len(chrome.panel))


def _grid(view: View, cells: int, rows: int) -> list[Line]:
    """The rows of the upper grid that a terminal of this height has room for, the least telling ones dropped first."""
    lines = grid_lines(view, cells)
    if rows >= 20:
        return lines
    kept = (0, 1, 3, 2) if rows >= 16 else (0, 1, 3)
    return [lines[i] for i in sorted(kept)]


@dataclass(frozen=True)
class Shares:
    """Rows of the slots table with its header, of the waiting list, and of what is left below."""

    slots: int
    waiting: int
    left: int


def shares(frame: Frame, listed: Listing, body: int) -> Shares:
    """How the rows of the main column are shared out; blank rows between are not counted."""
    waiting = frame.waiting_count if frame.waiting_count is not None else len(frame.waiting)
    least = 1 + min(waiting, BUSY_WAITING_ROWS) if body >= 7 else 0
    slots = max(0, min(max(1, len(listed.slots)) + 1, body - least - (1 if least else 0)))
    left = max(0, body - slots - 1)
    wanted = 1 + waiting
    shown = min(left, max(least, min(wanted, left - 5)))
    return Shares(slots, shown, max(0, left - shown - 1))


def live_body(view: View, chrome: Chrome, cells: int, rows: int, state: LiveState = _PLAIN) -> list[Line]:
    """What stands between the lines above and the status line."""
    frame = view.frame
    if frame is None:
        text = " waiting for the first picture of the engine …" if view.disconnected is None else ""
        return [exact([(text, "label")], cells), *[blank(cells)] * rows][:rows]
    if state.zoom == "slots":
        return table(frame, listing(frame, state.choice), cells, rows, state.choice)
    if state.zoom == "plots":
        return list(plot_lines(view.trace, cells, min(rows, ZOOMED_PLOT_ROWS)))
    if state.zoom == "timeline":
        return list(timeline_lines(view.trace, _slots_known(frame), cells, rows))
    if state.zoom == "events":
        return event_lines(view.events, cells, rows)
    if cells < WIDE:
        return _main(view, chrome, state, cells=cells, rows=rows, narrow=True)
    main_cells = max(80, min(112, cells * 62 // 100))
    side_cells = cells - main_cells - 1
    main = _main(view, chrome, state, cells=main_cells, rows=rows, narrow=False)
    side = _side(view, frame, side_cells, rows)
    # The log stands where it has more room.
    room_main, room_side = rows - len(main) - 1, rows - len(side)
    if room_main > room_side:
        main += [blank(main_cells), *event_lines(view.events, main_cells, room_main)]
        side = _side(view, frame, side_cells, rows, alone=True)
    else:
        side += event_lines(view.events, side_cells, room_side)
    return beside(main, side[:rows], main_cells, side_cells)


def _side(view: View, frame: Frame, cells: int, rows: int, *, alone: bool = False) -> list[Line]:
    """Latency detail, then plots; ``alone``: nothing else is to stand below."""
    side = [*latency_lines(frame, cells), blank(cells)]
    left = rows - len(side)
    plot_rows = min(PLOT_ROWS_HIGH, left // 2) if left >= 2 * PLOT_ROWS_HIGH else min(PLOT_ROWS_LOW, left)
    if alone:
        plot_rows = min(ZOOMED_PLOT_ROWS, left)
    if plot_rows >= PLOT_ROWS_LOW:
        side += [*plot_lines(view.trace, cells, plot_rows), blank(cells)]
    return side


def _slots_known(frame: Frame) -> int:
    """Rows of the timeline: every slot number in force or still held."""
    return max((slot.slot for slot in frame.slots), default=-1) + 1


def _main(view: View, chrome: Chrome, state: LiveState, *, cells: int, rows: int, narrow: bool) -> list[Line]:
    frame = view.frame
    assert frame is not None
    listed = listing(frame, state.choice)
    share = shares(frame, listed, rows)
    lines = table(frame, listed, cells, share.slots, state.choice)
    if share.waiting:
        lines += [blank(cells), *waiting_lines(frame, listed, cells, share.waiting)]
    lines.append(blank(cells))
    room = rows - len(lines)
    unused = frame.counters.received == 0 and not chrome.users
    hint = first_run_lines(frame.engine, cells, can_load=chrome.can_load) if unused else []
    if hint and room >= len(hint):
        lines += hint
    elif not narrow and room >= MIN_TIMELINE_ROWS:
        lines += timeline_lines(view.trace, _slots_known(frame), cells, min(room, _slots_known(frame) + 1))
    elif narrow and share.left >= 2 and room >= 2 and view.events:
        lines += event_lines(view.events, cells, room, "last events")
    return (lines + [blank(cells)] * (rows if narrow else 0))[:rows]


class LivePage(Page):
    """Which request is selected, what is filtered, and what fills the screen."""

    name = "live"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.state = LiveState()
        self.handlers = {
            **list_handlers(self.move, self._page_size),
            Command.SORT: self.sort,
            Command.FILTER: self.filter,
            Command.ZOOM: self.zoom,
            Command.INSPECT: self.inspect,
            Command.CANCEL: self.cancel,
        }

    def compose(self, view: View, chrome: Chrome, cells: int, rows: int) -> list[Line]:
        return compose_live(view, chrome, cells, rows, self.state)

    def stale_rows(self, view: View, chrome: Chrome, cells: int, rows: int) -> int:
        return max(0, rows - len(status_lines(chrome, cells)) - 1) if view.disconnected is not None else 0

    def back(self) -> bool:
        """End the zoom, else clear the filter, else clear the selection."""
        choice = self.state.choice
        if self.state.zoom:
            self.state = replace(self.state, zoom="")
        elif choice.wanted:
            self._choose(wanted="")
        elif choice.cursor is not None:
            self._choose(cursor=None, offset=0)
        else:
            return False
        return True

    def copied(self) -> str | None:
        """The selected request: its id and its row."""
        listed = self._listing()
        selected = listed.row if listed is not None else None
        if selected is None or selected.request_id is None:
            return None
        if isinstance(selected, SlotInfo):
            return f"{selected.request_id}\n{plain(row(selected, None, 120)).strip()}"
        return f"{selected.request_id}\nwaiting {selected.user or UNKNOWN} {selected.prompt_tokens or UNKNOWN} tokens"

    def _listing(self) -> Listing | None:
        frame = self.context.view.frame
        return None if frame is None else listing(frame, self.state.choice)

    def _choose(self, **changes: object) -> None:
        self.state = replace(self.state, choice=replace(self.state.choice, **changes))  # type: ignore[arg-type]

    # ------------------------------------------------------------------ commands

    def move(self, step: int) -> None:
        """Select another request. The first step selects the first or the last visible one."""
        listed = self._listing()
        if listed is None:
            return
        if listed.selected is not None:
            self._select(listed, listed.selected + step)
        elif step == -1:
            self._select(listed, len(listed.slots) + len(listed.waiting))
        else:
            self._select(listed, self.state.choice.offset + (0 if step == 1 else step))

    def _select(self, listed: Listing, place: int) -> None:
        self._choose(cursor=listed.cursor_at(place))
        found = self._listing()
        if found is not None and found.selected_slot is not None:
            room = self._table_height(found)
            self._choose(offset=table_offset(len(found.slots), room, self.state.choice.offset, found.selected_slot))

    def _table_height(self, listed: Listing) -> int:
        view, (width, height) = self.context.view, self.context.size
        if view.frame is None:
            return 0
        rows = body_rows(view, Chrome(), width, height)
        return rows if self.state.zoom == "slots" else shares(view.frame, listed, rows).slots

    def _page_size(self) -> int:
        listed = self._listing()
        return self._table_height(listed) - 2 if listed is not None else 1

    def sort(self, direction: int) -> None:
        """Sort by the next column, or by the one before."""
        names = list(SORTS)
        name = names[(names.index(self.state.choice.sort) + direction) % len(names)]
        self._choose(sort=name, offset=0)
        self.context.say(f"slots sorted by {name}" if name != "slot" else "slots sorted by number")

    def filter(self) -> None:
        """Type a text; only requests that contain it are listed."""
        self.state = replace(self.state, zoom="" if self.state.zoom == "events" else self.state.zoom)
        self.context.ask(TextPrompt("filter", self._filtered, self.state.choice.wanted))

    def _filtered(self, text: str) -> None:
        self._choose(wanted=text, offset=0)
        self.redraw()

    def zoom(self) -> None:
        """Give the whole body to the next part of the page."""
        self.state = replace(self.state, zoom=ZOOMS[(ZOOMS.index(self.state.zoom) + 1) % len(ZOOMS)])

    def inspect(self) -> None:
        """Open the selected request."""
        listed = self._listing()
        selected = listed.row if listed is not None else None
        if selected is None:
            self.context.say("no request is selected: j and k select one")
        elif (request_id := selected.request_id or self._last_in(selected)) is None:
            self.context.say("nobody used this slot in the last ten minutes")
        else:
            self.context.open_page("request", request_id)

    def _last_in(self, row: SlotInfo | WaitingInfo) -> str | None:
        """The request that used a free slot last."""
        seconds = self.context.view.trace.seconds
        marks = (second.slots.get(row.slot) for second in reversed(seconds)) if isinstance(row, SlotInfo) else ()
        return next((mark.request_id for mark in marks if mark is not None and mark.request_id), None)

    def cancel(self) -> None:
        """Ask, then cancel the selected request."""
        listed = self._listing()
        selected = listed.row if listed is not None else None
        if selected is None or selected.request_id is None:
            self.context.say("no request is selected: j and k select one" if selected is None else "this slot is free")
            return
        self.context.session.ask_cancel(selected.request_id, selected.user)
