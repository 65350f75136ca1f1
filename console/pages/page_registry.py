"""Where each page lives. A page is imported when it is first opened, so that the start pays for Live alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotdeck.console.app import ConsoleApp
    from slotdeck.console.pages.page import Page

LIVE = "live"
"""The page that is shown when no other is."""

PAGES = {
    "live": "slotdeck.console.pages.live:LivePage",
    "planner": "slotdeck.console.pages.planner:PlannerPage",
    "demo": "slotdeck.console.pages.demo:DemoPage",
    "history": "slotdeck.console.pages.history:HistoryPage",
    "doctor": "slotdeck.console.pages.doctor:DoctorPage",
    "request": "slotdeck.console.pages.request:RequestPage",
}
"""Name of a page, as the action ``("open", name)`` gives it, and its class."""


def make_page(name: str, app: ConsoleApp) -> Page:
    """The page of that name; KeyError if there is none."""
    module, _, cls = PAGES[name].partition(":")
    page: Page = getattr(import_module(module), cls)(app)
    return page
