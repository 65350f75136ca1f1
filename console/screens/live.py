"""The Live screen: who is served, what is full, who waits, is it smooth.

:func:`compose_live` is a pure function from a view to lines; the screen only keeps what is shown and repaints what
changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from textual.app import ComposeResult
from textual.screen import Screen

from console.actions import footer_line
from console.status import Status
from console.store import View
from console.themes import ConsoleTheme
from console.widgets import formats
from console.widgets.canvas import Canvas
from console.widgets.cells import Line, Span, beside, blank, clean, exact, wrap
from console.widgets.engine_lines import grid_lines, title_line
from console.widgets.events import event_lines
from console.widgets.latency import ROWS as LATENCY_ROWS
from console.widgets.latency import latency_lines
from console.widgets.slots import most_offset, table
from console.widgets.waiting import waiting_lines
from engine.telemetry.frame import Frame

WIDE = 112
"""Columns from which latency detail and the event log stand beside the slots."""

BUSY_WAITING_ROWS = 2
"""Waiting requests that are always shown, even when slots must scroll for it."""


@dataclass(frozen=True)
class Chrome:
    """What the console itself adds to the engine's view."""

    status: Status = field(default_factory=Status)
    editing: bool = False
    paused_for: float | None = None
    disconnected_for: float | None = None
    offset: int = 0
    users: int | None = None
    """Simulated users that run now."""
    can_load: bool = False


def compose_live(view: View, chrome: Chrome, cells: int, rows: int) -> list[Line]:
    """The whole screen: exactly ``rows`` lines of exactly ``cells`` cells."""
    top = [title_line(view, cells), *_grid(view, cells, rows), _banner(view, chrome, cells)]
    bottom = [*_status_lines(chrome, cells), footer_line(editing=chrome.editing, cells=cells)]
    body_rows = max(0, rows - len(top) - len(bottom))
    body = _body(view, chrome, cells, body_rows)
    return ([*top, *body][: rows - len(bottom)] + bottom)[:rows] if rows > len(bottom) else bottom[-rows:]


def table_rows(view: View, cells: int, rows: int, status_rows: int = 1) -> int:
    """Rows that the table of slots, its header included, gets on such a screen."""
    if view.frame is None:
        return 0
    body = rows - 2 - len(_grid(view, cells, rows)) - status_rows - 1
    return _shares(view.frame, body)[0]


def scroll_limit(view: View, cells: int, rows: int) -> int:
    """The largest useful scroll offset."""
    return 0 if view.frame is None else most_offset(len(view.frame.slots), table_rows(view, cells, rows))


def _grid(view: View, cells: int, rows: int) -> list[Line]:
    """The rows of the upper grid that a terminal of this height has room for, the least telling ones dropped first."""
    lines = grid_lines(view, cells)
    if rows >= 20:
        return lines
    kept = (0, 1, 3, 2) if rows >= 16 else (0, 1, 3)
    return [lines[i] for i in sorted(kept)]


def _shares(frame: Frame, body: int) -> tuple[int, int, int]:
    """Rows of the slots table, of the waiting list and of what is left below; blank rows between are not counted."""
    waiting = frame.waiting_count if frame.waiting_count is not None else len(frame.waiting)
    least = 1 + min(waiting, BUSY_WAITING_ROWS) if body >= 7 else 0
    slots = max(0, min(max(1, len(frame.slots)) + 1, body - least - (1 if least else 0)))
    left = max(0, body - slots - 1)
    wanted = 1 + waiting
    listed = min(left, max(least, min(wanted, left - 5)))
    return slots, listed, max(0, left - listed - 1)


def _body(view: View, chrome: Chrome, cells: int, rows: int) -> list[Line]:
    frame = view.frame
    if frame is None:
        text = " waiting for the first picture of the engine …" if view.disconnected is None else ""
        return [exact([(text, "label")], cells), *[blank(cells)] * rows][:rows]
    if cells < WIDE:
        return _main(view, frame, chrome, cells, rows, with_events=True)
    main_cells = max(80, min(112, cells * 62 // 100))
    side_cells = cells - main_cells - 1
    main = _main(view, frame, chrome, main_cells, rows, with_events=False)
    side = [*latency_lines(frame, side_cells), blank(side_cells)]
    side += event_lines(view.events, side_cells, max(0, rows - LATENCY_ROWS - 1))
    return beside(main, side[:rows], main_cells, side_cells)


def _main(view: View, frame: Frame, chrome: Chrome, cells: int, rows: int, *, with_events: bool) -> list[Line]:
    slot_rows, waiting_rows, left = _shares(frame, rows)
    lines = table(frame, cells, slot_rows, chrome.offset)
    if waiting_rows:
        lines += [blank(cells), *waiting_lines(frame, cells, waiting_rows)]
    lines.append(blank(cells))
    room = rows - len(lines)
    hint = _first_run(frame, chrome, cells) if frame.counters.received == 0 and not chrome.users else []
    if hint and room >= len(hint):
        lines += hint
    elif with_events and left >= 2 and room >= 2 and view.events:
        lines += event_lines(view.events, cells, room, "last events")
    return (lines + [blank(cells)] * rows)[:rows]


def _first_run(frame: Frame, chrome: Chrome, cells: int) -> list[Line]:
    """What to do with an engine that nobody has asked anything yet."""
    url = clean(frame.engine.url or "http://127.0.0.1:8000").rstrip("/")
    model = clean(frame.engine.model or "")
    ask = '{"messages":[{"role":"user","content":"Say hello"}]}'
    rows: list[list[Span]] = [
        [(" Nobody has asked anything yet. Point a chat client at this engine:", "text")],
        [("   OpenAI base URL  ", "label"), (f"{url}/v1", "value"), ("   model  ", "label"), (model, "value")],
        [(f"   curl {url}/v1/chat/completions \\", "label")],
        [("     -H 'Content-Type: application/json' \\", "label")],
        [(f"     -d '{ask}'", "label")],
    ]
    if chrome.can_load:
        rows.append([(" or press ", "text"), ("L", "key"), (": five simulated people come and chat with it.", "text")])
    return [exact(row, cells) for row in rows]


def _banner(view: View, chrome: Chrome, cells: int) -> Line:
    """The one line that says what is out of the ordinary; empty when nothing is."""
    lost = None
    if view.disconnected is not None:
        trying = "" if view.ended else "; reconnecting"
        lost = f"{clean(view.disconnected)}{trying}"
    if chrome.paused_for is not None:
        text = f" PAUSED {formats.clock(chrome.paused_for)}  the engine goes on, space resumes the view"
        return exact([(f"{text}  ({lost})" if lost else text, "banner")], cells, "banner")
    if lost is not None:
        age = "" if chrome.disconnected_for is None else f" {formats.clock(chrome.disconnected_for)}"
        return exact([(f" DISCONNECTED{age}  {lost}", "alert")], cells, "alert")
    frame = view.frame
    if frame is None:
        return blank(cells)
    reason = clean(frame.health_reason or "")
    if frame.health == "fault":
        return exact([(f" ENGINE FAULT  {reason or 'no reason given'}", "alert")], cells, "alert")
    if frame.health == "draining":
        text = reason or "running requests finish, newcomers get 503"
        return exact([(f" DRAINING  {text}", "banner")], cells, "banner")
    if frame.health == "starting":
        return exact([(f" STARTING  {reason}", "banner")], cells, "banner")
    if frame.engine.insecure:
        return exact([(" ! open to the network without API keys", "critical")], cells)
    return blank(cells)


def _status_lines(chrome: Chrome, cells: int) -> list[Line]:
    """The status line, two rows if its sentence needs them."""
    status = chrome.status
    head = f" {status.head}" if status.head else ""
    if not status.head and not status.text:
        if chrome.users:
            spans: list[Span] = [(f" load {chrome.users} users", "key"), ("  L sends them away", "label")]
            return [exact(spans, cells)]
        return [blank(cells)]
    lines: list[Line] = []
    for number, text in enumerate(wrap(f"{head} {clean(status.text)}".rstrip(), cells, 2)):
        if number == 0:
            lines.append(exact([(text[: len(head)], "title"), (text[len(head) :], status.level)], cells))
        else:
            lines.append(exact([(f" {text}", status.level)], cells))
    return lines


class LiveScreen(Screen[None]):
    """Shows one view at a time; :meth:`show` is called by the app's tick and after each key."""

    def __init__(self, theme: ConsoleTheme, *, ascii_only: bool) -> None:
        super().__init__()
        self.canvas = Canvas(theme, ascii_only=ascii_only, id="live")
        self._shown: tuple[View, Chrome, int, int] | None = None

    def compose(self) -> ComposeResult:
        self.show(View(), Chrome())
        yield self.canvas

    def show(self, view: View, chrome: Chrome) -> None:
        """Draw what changed since the last call; without a change nothing is computed."""
        size = self.app.size
        wanted = (view, chrome, size.width, size.height)
        before = self._shown
        if before is not None and before[0] is view and before[1:] == wanted[1:]:
            return
        self._shown = wanted
        lines = compose_live(view, chrome, size.width, size.height)
        stale = len(lines) - len(_status_lines(chrome, size.width)) - 1 if view.disconnected is not None else 0
        self.canvas.show(lines, dimmed=max(0, stale))
