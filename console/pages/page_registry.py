"""Where each page is defined. A page is imported when it is first opened, so that the start imports only Live."""

from __future__ import annotations

from importlib import import_module

from slotdeck.console.pages.context import PageContext
from slotdeck.console.pages.page import Page

PAGES = {
    "live": "slotdeck.console.pages.live:LivePage",
    "planner": "slotdeck.console.pages.planner:PlannerPage",
    "demo": "slotdeck.console.pages.demo:DemoPage",
    "history": "slotdeck.console.pages.history:HistoryPage",
    "doctor": "slotdeck.console.pages.doctor:DoctorPage",
    "request": "slotdeck.console.pages.request:RequestPage",
}
"""Module and class of each page by name. ``Command.OPEN_PAGE`` takes the name as its argument."""


def make_page(name: str, context: PageContext) -> Page:
    """Import and make the page of that name. Raises KeyError if there is none."""
    module, _, cls = PAGES[name].partition(":")
    page: Page = getattr(import_module(module), cls)(context)
    return page
