"""The layout that all pages share: title, heading and banner at the top, status line and keys at the bottom. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import Line, Span, blank, cell_width, clean, exact, wrap
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


def framed(top: list[Line], body: Callable[[int], list[Line]], chrome: Chrome, width: int, height: int) -> list[Line]:
    """``top``, then ``body(rows left)`` with the panel over its lower part, then status line and keys."""
    bottom = [
        *status_lines(chrome, width),
        chrome.keymap.footer_line(editing=chrome.editing, page=chrome.page, width=width),
    ]
    if height <= len(bottom):
        return bottom[-height:] if height > 0 else []
    body_rows = max(0, height - len(top) - len(bottom))
    panel = list(chrome.panel[:body_rows])
    lines = body(body_rows - len(panel))
    lines = (lines + [blank(width)] * body_rows)[: body_rows - len(panel)] + [exact(line, width) for line in panel]
    return ([*top, *lines][: height - len(bottom)] + bottom)[:height]


def heading(title: str, note: str, width: int) -> Line:
    """The second line of every page but Live: its title and a note about what it shows."""
    return page_line([(f" {title}", "title"), (f"  {note}" if note else "", "label")], width)


def page_line(spans: list[Span], width: int) -> Line:
    """A second line made of spans, with the key that leads back at its end."""
    back: list[Span] = [("  esc", "key"), (" back ", "label")]
    room = width - sum(cell_width(text) for text, _ in back)
    return (*exact(spans, room), *back) if room > 0 else exact(spans, width)


def banner(view: View, chrome: Chrome, width: int) -> Line:
    """The line that reports anything unusual; empty if there is nothing to report."""
    lost = None
    if view.disconnected is not None:
        # The reason comes last, because the path at its end is what may be cut.
        trying = "" if view.ended else "reconnecting; "
        lost = f"{trying}{clean(view.disconnected)}"
    if chrome.paused_for is not None:
        text = f" PAUSED {formats.clock(chrome.paused_for)}  the engine goes on, space resumes the view"
        return exact([(f"{text}  ({lost})" if lost else text, "banner")], width, "banner")
    if view.end is not None:
        how = f" ({clean(view.end.how)})" if view.end.how else ""
        return exact([(f" ENGINE ENDED{how}  q leaves; slotdeck starts a new one", "alert")], width, "alert")
    if lost is not None:
        age = "" if chrome.disconnected_for is None else f" {formats.clock(chrome.disconnected_for)}"
        return exact([(f" DISCONNECTED{age}  {lost}", "alert")], width, "alert")
    frame = view.frame
    if frame is None:
        return blank(width)
    reason = clean(frame.health_reason or "")
    if frame.health == "fault":
        return exact([(f" ENGINE FAULT  {reason or 'no reason given'}", "alert")], width, "alert")
    if frame.health == "draining":
        text = reason or "running requests finish, new ones get 503"
        return exact([(f" DRAINING  {text}", "banner")], width, "banner")
    if frame.health == "starting":
        return exact([(f" STARTING  {reason}", "banner")], width, "banner")
    if frame.engine.insecure:
        return exact([(" ! open to the network without API keys", "critical")], width)
    if missed := missed_target(frame.limits):
        return exact([(f" ! {missed}", "warn")], width)
    return blank(width)


def status_lines(chrome: Chrome, width: int) -> list[Line]:
    """The status line; two rows if its sentence needs them."""
    status = chrome.status
    head = f" {status.head}" if status.head else ""
    if not status.head and not status.text:
        if chrome.users:
            spans: list[Span] = [(f" load {chrome.users} users", "key"), ("  L stops them", "label")]
            return [exact(spans, width)]
        return [blank(width)]
    lines: list[Line] = []
    for number, text in enumerate(wrap(f"{head} {clean(status.text)}".rstrip(), width, 2)):
        if number == 0:
            lines.append(exact([(text[: len(head)], "title"), (text[len(head) :], status.level)], width))
        else:
            lines.append(exact([(f" {text}", status.level)], width))
    return lines
