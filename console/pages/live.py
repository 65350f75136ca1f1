"""The Live page: who is served, what is full, who waits, and whether output is smooth.

:func:`compose_live` is a pure function from a view to lines. The page only keeps what is selected and how it is shown.
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
from slotdeck.console.sections.listing import SORTS, Listing, ListState, listing
from slotdeck.console.sections.plots import plot_lines
from slotdeck.console.sections.slot_timeline import timeline_lines
from slotdeck.console.sections.slots import row, table, table_offset
from slotdeck.console.sections.waiting import waiting_lines
from slotdeck.console.session.prompts import TextPrompt
from slotdeck.console.state.store import View
from slotdeck.engine.telemetry.frame import Frame, SlotInfo, WaitingInfo

WIDE = 112
"""Width of the terminal from which latency detail, plots and event log stand beside the slots."""

BUSY_WAITING_ROWS = 2
"""Waiting requests that are always shown, even if the slots must scroll."""

PLOT_ROWS_LOW, PLOT_ROWS_HIGH = 12, 17
"""Rows of the plots beside the slots: five plots of two or three rows each, a heading and the marks."""

ZOOMED_PLOT_ROWS = 22

MIN_TIMELINE_ROWS = 3

ZOOMS = ("", "slots", "plots", "timeline", "events")
"""What may fill the whole body; the first shows all parts together."""


@dataclass(frozen=True)
class LiveState:
    """What the admin chose on the Live page."""

    choice: ListState = field(default_factory=ListState)
    zoom: str = ""


_PLAIN = LiveState()


def compose_live(view: View, chrome: Chrome, width: int, height: int, state: LiveState = _PLAIN) -> list[Line]:
    """The whole screen: exactly ``height`` lines of exactly ``width`` cells."""
    top = [title_line(view, width), *_grid(view, width, height), banner(view, chrome, width)]
    return framed(top, lambda left: live_body(view, chrome, width, left, state), chrome, width, height)


def body_height(view: View, chrome: Chrome, width: int, height: int) -> int:
    """Rows between the lines at the top and the status line."""
    return max(
        0, height - 2 - len(_grid(view, width, height)) - len(status_lines(chrome, width)) - 1 - len(chrome.panel)
    )


def _grid(view: View, width: int, height: int) -> list[Line]:
    """The rows of the upper grid that fit a terminal of this height. The least important ones are dropped first."""
    lines = grid_lines(view, width)
    if height >= 20:
        return lines
    kept = (0, 1, 3, 2) if height >= 16 else (0, 1, 3)
    return [lines[i] for i in sorted(kept)]


@dataclass(frozen=True)
class RowShares:
    """Rows of the slots table with its header, of the waiting list, and of what is left below them."""

    slots: int
    waiting: int
    left: int


def row_shares(frame: Frame, listed: Listing, body: int) -> RowShares:
    """How the rows of the main column are divided. Blank rows between the parts are not counted."""
    waiting = frame.waiting_count if frame.waiting_count is not None else len(frame.waiting)
    least = 1 + min(waiting, BUSY_WAITING_ROWS) if body >= 7 else 0
    slots = max(0, min(max(1, len(listed.slots)) + 1, body - least - (1 if least else 0)))
    left = max(0, body - slots - 1)
    wanted = 1 + waiting
    shown = min(left, max(least, min(wanted, left - 5)))
    return RowShares(slots, shown, max(0, left - shown - 1))


def live_body(view: View, chrome: Chrome, width: int, height: int, state: LiveState = _PLAIN) -> list[Line]:
    """Everything between the lines at the top and the status line."""
    frame = view.frame
    if frame is None:
        text = " waiting for the first frame of the engine …" if view.disconnected is None else ""
        return [exact([(text, "label")], width), *[blank(width)] * height][:height]
    if state.zoom == "slots":
        return table(frame, listing(frame, state.choice), width, height, state.choice)
    if state.zoom == "plots":
        return list(plot_lines(view.series, width, min(height, ZOOMED_PLOT_ROWS)))
    if state.zoom == "timeline":
        return list(timeline_lines(view.series, _slots_known(frame), width, height))
    if state.zoom == "events":
        return event_lines(view.events, width, height)
    if width < WIDE:
        return _main(view, chrome, state, width=width, height=height, narrow=True)
    main_cells = max(80, min(112, width * 62 // 100))
    side_cells = width - main_cells - 1
    main = _main(view, chrome, state, width=main_cells, height=height, narrow=False)
    side = _side(view, frame, side_cells, height)
    # The event log goes where there is more room.
    room_main, room_side = height - len(main) - 1, height - len(side)
    if room_main > room_side:
        main += [blank(main_cells), *event_lines(view.events, main_cells, room_main)]
        side = _side(view, frame, side_cells, height, alone=True)
    else:
        side += event_lines(view.events, side_cells, room_side)
    return beside(main, side[:height], main_cells, side_cells)


def _side(view: View, frame: Frame, width: int, height: int, *, alone: bool = False) -> list[Line]:
    """Latency detail, then plots. ``alone``: nothing else follows below them."""
    side = [*latency_lines(frame, width), blank(width)]
    left = height - len(side)
    plot_rows = min(PLOT_ROWS_HIGH, left // 2) if left >= 2 * PLOT_ROWS_HIGH else min(PLOT_ROWS_LOW, left)
    if alone:
        plot_rows = min(ZOOMED_PLOT_ROWS, left)
    if plot_rows >= PLOT_ROWS_LOW:
        side += [*plot_lines(view.series, width, plot_rows), blank(width)]
    return side


def _slots_known(frame: Frame) -> int:
    """Number of slots on the timeline: those in force, and those still held."""
    return max((slot.slot for slot in frame.slots), default=-1) + 1


def _main(view: View, chrome: Chrome, state: LiveState, *, width: int, height: int, narrow: bool) -> list[Line]:
    frame = view.frame
    assert frame is not None
    listed = listing(frame, state.choice)
    share = row_shares(frame, listed, height)
    lines = table(frame, listed, width, share.slots, state.choice)
    if share.waiting:
        lines += [blank(width), *waiting_lines(frame, listed, width, share.waiting)]
    lines.append(blank(width))
    room = height - len(lines)
    unused = frame.counters.received == 0 and not chrome.users
    hint = first_run_lines(frame.engine, width, can_load=chrome.can_load) if unused else []
    if hint and room >= len(hint):
        lines += hint
    elif not narrow and room >= MIN_TIMELINE_ROWS:
        lines += timeline_lines(view.series, _slots_known(frame), width, min(room, _slots_known(frame) + 1))
    elif narrow and share.left >= 2 and room >= 2 and view.events:
        lines += event_lines(view.events, width, room, "last events")
    return (lines + [blank(width)] * (height if narrow else 0))[:height]


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

    def compose(self, view: View, chrome: Chrome, width: int, height: int) -> list[Line]:
        return compose_live(view, chrome, width, height, self.state)

    def stale_rows(self, view: View, chrome: Chrome, width: int, height: int) -> int:
        return max(0, height - len(status_lines(chrome, width)) - 1) if view.disconnected is not None else 0

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
        rows = body_height(view, Chrome(), width, height)
        return rows if self.state.zoom == "slots" else row_shares(view.frame, listed, rows).slots

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
        if not isinstance(row, SlotInfo):
            return None
        held = (sample.slots.get(row.slot) for sample in reversed(self.context.view.series.samples))
        return next((one.request_id for one in held if one is not None and one.request_id), None)

    def cancel(self) -> None:
        """Ask, then cancel the selected request."""
        listed = self._listing()
        selected = listed.row if listed is not None else None
        if selected is None or selected.request_id is None:
            self.context.say("no request is selected: j and k select one" if selected is None else "this slot is free")
            return
        self.context.session.ask_cancel(selected.request_id, selected.user)
