"""The Request screen: one request's life, and one sentence that says why it waited and why it paused.

:func:`compose_request` is a pure function; the page asks the source for the newest detail once a second while the
request lives, and keeps the last one after its end.
"""

from __future__ import annotations

import asyncio

from slotdeck.console.drawing.cells import UNKNOWN, Line, beside, blank, clean, exact
from slotdeck.console.drawing.glyphs import STATE_MARKS
from slotdeck.console.keys.actions import Command
from slotdeck.console.pages.context import PageContext
from slotdeck.console.pages.layout import Chrome, banner, framed, heading, page_line
from slotdeck.console.pages.page import Page
from slotdeck.console.sections.header import title_line
from slotdeck.console.sections.request_timeline import chunk_lines, facts, gap_plot, long_gaps, phase_bar, sentence
from slotdeck.console.state.store import View
from slotdeck.engine.telemetry.frame import LimitInfo, PoolInfo
from slotdeck.engine.telemetry.requests.detail import RequestDetail

ASK_SECONDS = 1.0
WIDE = 112
"""Width of the terminal from which the prefill chunks stand beside the gaps."""
ENDED = ("finished", "cancelled", "failed", "rejected")


def compose_request(
    detail: RequestDetail | None, problem: str, view: View, chrome: Chrome, *, width: int, height: int
) -> list[Line]:
    """The whole screen: exactly ``height`` lines of exactly ``width`` cells."""
    top = [title_line(view, width), _heading(detail, width), banner(view, chrome, width)]

    def body(left: int) -> list[Line]:
        lines = [exact([(f" {clean(problem)}", "warn")], width)] if problem else []
        if detail is None:
            return lines or [exact([(" asking the engine about this request …", "label")], width)]
        return [*lines, *_body(detail, view, width, left - len(lines))]

    return framed(top, body, chrome, width, height)


def _heading(detail: RequestDetail | None, width: int) -> Line:
    if detail is None:
        return heading("Request", "", width)
    marks = {"waiting": "·", "finished": "✓"} | dict.fromkeys(("cancelled", "failed", "rejected"), "✗")
    mark = marks.get(detail.state) or STATE_MARKS[detail.state]
    reason = f" ({clean(detail.finish_reason)})" if detail.finish_reason and detail.state == "finished" else ""
    slot = "" if detail.slot is None else f"  slot {detail.slot}"
    style = detail.state if detail.state in STATE_MARKS else "critical" if detail.state == "failed" else "value"
    return page_line(
        [(" Request  ", "title"), (f"{mark} {detail.state}{reason}", style), (f"{slot}  ", "label"),
         (clean(detail.user or UNKNOWN), "value"), (f"  {clean(detail.request_id)}", "label")], width)  # fmt: skip


def _body(detail: RequestDetail, view: View, width: int, height: int) -> list[Line]:
    frame = view.frame
    pool, limits = (frame.pool, frame.limits) if frame is not None else (PoolInfo(), LimitInfo())
    lines = [
        *sentence(detail, width, 3 if width >= 80 else 4),
        blank(width),
        *facts(detail, pool, limits, width),
        blank(width),
    ]
    lines += [*phase_bar(detail, width), blank(width)]
    room = max(0, height - len(lines))
    if width >= WIDE and detail.chunks:
        main, side = width * 59 // 100, width - width * 59 // 100 - 1
        return lines + beside(_gaps(detail, main, room), chunk_lines(detail.chunks, side, room), main, side)[:room]
    gaps = _gaps(detail, width, room)
    left = room - len(gaps) - 1
    return [*lines, *gaps, blank(width), *chunk_lines(detail.chunks, width, left)] if left >= 3 else [*lines, *gaps]


def _gaps(detail: RequestDetail, width: int, height: int) -> list[Line]:
    """The plot and the longest gaps, sharing the rows."""
    if height < 2:
        return []
    listed = len(long_gaps(detail, width, max(0, (height - 1) // 2)))
    plot_rows = max(1, min(12, height - 1 - listed - (1 if listed else 0)))
    if not detail.gaps:
        plot_rows = 0
    lines = gap_plot(detail, width, plot_rows)
    return [*lines, blank(width), *long_gaps(detail, width, listed)][:height] if listed else lines[:height]


class RequestPage(Page):
    """Follows one request, also after it has ended."""

    name = "request"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.request_id = ""
        self.detail: RequestDetail | None = None
        self.problem = ""
        self._open = False
        self.handlers = {Command.MOVE: self.move, Command.CANCEL: self.cancel}

    def compose(self, view: View, chrome: Chrome, width: int, height: int) -> list[Line]:
        return compose_request(self.detail, self.problem, view, chrome, width=width, height=height)

    def opened(self, argument: str | None) -> None:
        """Show the request with this id, or the previous one again."""
        if argument is not None and argument != self.request_id:
            self.request_id, self.detail, self.problem = argument, None, ""
        self._open = True
        self.context.run(self._follow(), "request", exclusive=True)

    def closed(self) -> None:
        self._open = False

    async def _follow(self) -> None:
        """Ask for the newest detail until the request has ended or the page is closed."""
        while self._open:
            request_id = self.request_id
            answer = await self.context.session.source.request(request_id)
            if request_id != self.request_id:
                continue
            if isinstance(answer, RequestDetail):
                self.detail, self.problem = answer, ""
            else:
                self.problem = clean(answer.message or "this request is not known")
            if not self.context.display.paused:
                self.redraw()
            if self.detail is not None and self.detail.state in ENDED:
                return
            await asyncio.sleep(ASK_SECONDS)

    def move(self, step: int) -> None:
        """Show the request in the next slot, or in the one before."""
        frame = self.context.view.frame
        ids = [slot.request_id for slot in frame.slots if slot.request_id] if frame is not None else []
        ids += [waiter.request_id for waiter in frame.waiting] if frame is not None else []
        if ids:
            at = ids.index(self.request_id) + step if self.request_id in ids else 0
            self.opened(ids[at % len(ids)])

    def cancel(self) -> None:
        """Ask, then cancel this request."""
        if self.detail is None or self.detail.state in ENDED:
            self.context.say("this request has ended already")
        else:
            self.context.session.ask_cancel(self.request_id, self.detail.user)
