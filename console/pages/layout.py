"""The layout that all pages share: title, heading and banner at the top, status line and keys at the bottom. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import Line, Span, blank, clean, exact, width, wrap
from slotdeck.console.keys.actions import LIVE
from slotdeck.console.keys.keymap import Keymap
from slotdeck.console.sections.header import missed_target
from slotdeck.console.session.prompts import Status
from slotdeck.console.state.store import View

_KEYMAP = Keymap()


@dataclass(frozen=True)
class Chrome:
    """What surrounds the engine's view on every page."""

    status: Status = field(default_factory=Status)
    editing: bool = False
    """A setting is being edited, so the footer shows the keys for that."""
    paused_for: float | None = None
    """Seconds; ``None`` while the view is not paused."""
    disconnected_for: float | None = None
    users: int | None = None
    """Simulated users that run now."""
    can_load: bool = False
    """Simulated users can be started."""
    panel: tuple[Line, ...] = ()
    """A panel over the lower part of the page."""
    keymap: Keymap = _KEYMAP
    page: str = LIVE
    """Name of what the keys act on: a page, or ``panel``."""


def framed(top: list[Line], body: Callable[[int], list[Line]], chrome: Chrome, cells: int, rows: int) -> list[Line]:
    """``top``, then ``body(rows left)`` with the panel over its lower part, then status line and keys."""
    bottom = [
        *status_lines(chrome, cells),
        chrome.keymap.footer_line(editing=chrome.editing, page=chrome.page, cells=cells),
    ]
    if rows <= len(bottom):
        return bottom[-rows:] if rows > 0 else []
    body_rows = max(0, rows - len(top) - len(bottom))
    panel = list(chrome.panel[:body_rows])
    lines = body(body_rows - len(panel))
    lines = (lines + [blank(cells)] * body_rows)[: body_rows - len(panel)] + [exact(line, cells) for line in panel]
    return ([*top, *lines][: rows - len(bottom)] + bottom)[:rows]


def heading(title: str, note: str, cells: int) -> Line:
    """The second line of a page other than Live: what it is and what it shows."""
    return page_line([(f" {title}", "title"), (f"  {note}" if note else "", "label")], cells)


def page_line(spans: list[Span], cells: int) -> Line:
    """Such a line from spans, with the way back at its end."""
    back: list[Span] = [("  esc", "key"), (" back ", "label")]
    room = cells - sum(width(text) for text, _ in back)
    return (*exact(spans, room), *back) if room > 0 else exact(spans, cells)


def banner(view: View, chrome: Chrome, cells: int) -> Line:
    """The one line that says what is out of the ordinary; empty when nothing is."""
    lost = None
    if view.disconnected is not None:
        # The reason comes last: a path at its end is what may be cut.
        trying = "" if view.ended else "reconnecting; "
        lost = f"{trying}{clean(view.disconnected)}"
    if chrome.paused_for is not None:
        text = f" PAUSED {formats.clock(chrome.paused_for)}  the engine goes on, space resumes the view"
        return exact([(f"{text}  ({lost})" if lost else text, "banner")], cells, "banner")
    if view.end is not None:
        how = f" ({clean(view.end.how)})" if view.end.how else ""
        return exact([(f" ENGINE ENDED{how}  q leaves; slotdeck starts a new one", "alert")], cells, "alert")
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
    if missed := missed_target(frame.limits):
        return exact([(f" ! {missed}", "warn")], cells)
    return blank(cells)


def status_lines(chrome: Chrome, cells: int) -> list[Line]:
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
