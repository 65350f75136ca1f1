"""Where each page lives. A page is imported when it is first opened, so that the start pays for Live alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from console.app import ConsoleApp
    from console.screens.page import Page

LIVE = "live"
"""The page that is shown when no other is."""

PAGES = {
    "live": "console.screens.live:LivePage",
    "planner": "console.screens.planner:PlannerPage",
    "demo": "console.screens.demo:DemoPage",
    "history": "console.screens.history:HistoryPage",
    "doctor": "console.screens.doctor:DoctorPage",
    "request": "console.screens.request:RequestPage",
}
"""Name of a page, as the action ``("open", name)`` gives it, and its class."""


def make_page(name: str, app: ConsoleApp) -> Page:
    """The page of that name; KeyError if there is none."""
    module, _, cls = PAGES[name].partition(":")
    page: Page = getattr(import_module(module), cls)(app)
    return page
