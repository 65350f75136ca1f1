"""The console: keeps the store fed, draws the page that is shown, and sends what the admin decides.

It only watches and commands. Whatever happens to it, the engine and the streams it serves go on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App, SystemCommand
from textual.screen import Screen

from slotdeck.console.drawing.cells import clean, plain
from slotdeck.console.pages.page_registry import LIVE, make_page
from slotdeck.console.screens.page_screen import PageScreen
from slotdeck.console.session.services import Parts
from slotdeck.console.terminal.configuration import ConsoleConfiguration
from slotdeck.console.terminal.driver import ConsoleDriver
from slotdeck.console.terminal.environment import ascii_wanted, can_resume, console_log, own_screen
from slotdeck.console.terminal.startup import NonBlockingExecutor, collect_again
from slotdeck.console.terminal.themes import DEFAULT_ANSI, ConsoleTheme, load_themes
from slotdeck.engine.paths import state_folder

if TYPE_CHECKING:
    # Imported when they are first needed, which is after the first paint: frames and settings take their time.
    from slotdeck.console.pages.page import Chrome, Page
    from slotdeck.console.processes.simulated_users import LoadControl
    from slotdeck.console.session.prompts import Prompt
    from slotdeck.console.sources.base import FrameSource
    from slotdeck.console.state.store import View

TICK = 0.25
"""Seconds between two looks at the store."""
BLURRED_TICKS = 4
"""Only every so many ticks draw while the terminal says that nobody looks."""
RATES = (4.0, 2.0, 1.0, 0.5)
"""Drawings a second that the key for the refresh rate goes through."""


class ConsoleApp(Parts, App[int], inherit_bindings=False):
    """The whole console. ``source`` gives frames; ``hosted`` says that this console started the engine.

    ``on_toggle_load`` runs simulated users; ``clock`` is monotonic seconds; ``on_begun`` is called once everything
    is imported and drawn. The app's result is the exit code.
    """

    CSS_PATH = "app.tcss"
    TITLE = "slotdeck"
    ENABLE_COMMAND_PALETTE = True
    ALLOW_SELECT = False

    def __init__(
        self,
        source: FrameSource,
        *,
        hosted: bool = False,
        socket: Path | None = None,
        notices: Iterable[str] = (),
        on_toggle_load: LoadControl | None = None,
        ascii_only: bool = False,
        configuration: ConsoleConfiguration | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        no_color = "NO_COLOR" in os.environ
        super().__init__(driver_class=ConsoleDriver, ansi_color=True if no_color else None)
        configuration = configuration or ConsoleConfiguration()
        self.source = source
        self.hosted = hosted
        self.configuration = configuration
        self.prompt: Prompt | None = None
        """Gets every key while it is open."""
        self.ascii_only = ascii_only
        self.clock = clock
        self._load = on_toggle_load
        self._socket = socket
        self._on_begun = on_begun
        self._begun = False
        """The first paint is done."""
        self._paused: tuple[View, float] | None = None
        self._rate = configuration.rate
        self._ticks = 0
        self._themes, theme_problems = load_themes()
        self._notices = [*notices, *configuration.problems, *theme_problems]
        for console_theme in self._themes.values():
            self.register_theme(console_theme.theme)
        if configuration.theme and configuration.theme not in self._themes:
            self._notices.append(f"no theme is called {configuration.theme!r}; known are {', '.join(self._themes)}")
        wanted = DEFAULT_ANSI if no_color else configuration.theme
        self.theme = wanted if wanted in self._themes else next(iter(self._themes))
        self._chosen_theme = bool(configuration.theme)
        self.base = PageScreen(self.colours, ascii_only=ascii_only)
        self._pages: dict[str, Page] = {}
        self._trail = [LIVE]
        """Names of the pages opened one from the other; the last one is shown."""

    # ------------------------------------------------------------------ start, tick, end

    @property
    def colours(self) -> ConsoleTheme:
        """The theme in force."""
        return self._themes[self.theme]

    @property
    def page(self) -> Page:
        """The page that is shown."""
        name = self._trail[-1]
        if name not in self._pages:
            self._pages[name] = make_page(name, self)
        return self._pages[name]

    def get_default_screen(self) -> Screen[None]:
        """Pages are the bottom of everything."""
        return self.base

    def on_mount(self) -> None:
        """Begin to read and to draw."""
        if self.ascii_only:
            self.add_class("-ascii")
        if self.console.color_system in (None, "standard") and not self.is_headless and not self._chosen_theme:
            self._use_theme(DEFAULT_ANSI)
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(NonBlockingExecutor())
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.exit, 0)
        self.app_resume_signal.subscribe(self, self._resumed)
        # The first paint comes before anything that takes time.
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        from slotdeck.console.processes.simulated_users import SimulatedUsers

        for text in (*self._notices, *self.keymap.problems):
            self.notify(text, markup=False, timeout=10)
        if self._load is None and self._socket is not None:
            self._load = SimulatedUsers(self._socket)
        self._begun = True
        self.draw()
        self.set_interval(TICK, self._tick)
        self.run_worker(self._read(), group="source", exit_on_error=False)
        self._on_begun()

    def _resumed(self, _app: App[object]) -> None:
        """Back from ctrl+z: the terminal kept nothing of the screen, and its size is the only thing it tells."""
        self.refresh(layout=True)

    async def _read(self) -> None:
        """Feed the store. Touches no widget: the tick draws."""
        from slotdeck.console.sources.base import Disconnected
        from slotdeck.engine.telemetry.frame import Frame

        try:
            async for update in self.source.updates():
                first = self.store.version == 0
                self.store.apply(update)
                if first:
                    self.call_later(self.draw)
                if isinstance(update, Frame):
                    self.knobs.see(update)
                elif isinstance(update, Disconnected) and self.leaving.stopping:
                    self.exit(0)
                    return
        except Exception as error:
            self.log.error(error)
            self.store.apply(Disconnected(f"the console lost its source ({type(error).__name__}: {error})", final=True))

    def _tick(self) -> None:
        self._ticks += 1
        every = max(1, round(1 / (self._rate * TICK)))
        if not self.app_focus:
            every = max(every, BLURRED_TICKS)
        if self._ticks % every:
            return
        if self._load is not None and (ended := self._load.ended_with()) is not None:
            self.say(ended, failed=True)
        self.draw()

    def draw(self) -> None:
        """Bring the page, and the question above it, up to the newest view."""
        if not self._begun or not self.is_running or not self.base.is_mounted:
            return
        self.base.show(self.page, view := self.shown_view, self._chrome(view))
        if self.leaving.stage and self.screen is not self.base and hasattr(self.screen, "refresh_text"):
            self.screen.refresh_text()

    @property
    def socket(self) -> Path | None:
        """Of an engine on this machine; ``None`` for any other source."""
        return self._socket

    @property
    def load_runs(self) -> bool:
        """Simulated users of this console are there."""
        return self._load is not None and self._load.running

    @property
    def paused(self) -> bool:
        """The view is frozen."""
        return self._paused is not None

    @property
    def shown_view(self) -> View:
        """The newest view, or while paused the one of then, with what became of the connection since."""
        newest = self.store.view
        if self._paused is None:
            return newest
        kept = self._paused[0]
        if newest.disconnected is None or kept.frame is None or kept.disconnected == newest.disconnected:
            return kept
        self._paused = (kept.without_connection(newest), self._paused[1])
        return self._paused[0]

    def on_resize(self) -> None:
        """The size decides the layout."""
        self.draw()

    async def on_unmount(self) -> None:
        """Simulated users go when the console goes."""
        if self._load is not None:
            await asyncio.to_thread(self._load.stop)

    def _chrome(self, view: View) -> Chrome:
        from slotdeck.console.pages.page import Chrome

        now = self.clock()
        lost = self.store.view.disconnected_at
        newest = self.store.view.frame
        return Chrome(
            status=self.prompt.status if self.prompt else self.status.show(self.knobs, newest, self.store.view.end),
            editing=self.knobs.edit is not None,
            paused_for=float(int(now - self._paused[1])) if self._paused else None,
            disconnected_for=None if lost is None else float(int(now - lost)),
            users=self._load.users if self._load is not None and self._load.running else None,
            can_load=self._load is not None,
            panel=self.panel.lines(*self.size) or self.card.lines(view, self.size.width),
            keymap=self.keymap,
            page=self._mode,
        )

    @property
    def _mode(self) -> str:
        """What keys are about: the panel while it is open, else the page."""
        return "panel" if self.panel.open else self._trail[-1]

    # ------------------------------------------------------------------ the status line

    def say(self, text: str, *, failed: bool = False) -> None:
        """Put a sentence on the status line for a while."""
        self.knobs.message, self.knobs.failed = text, failed

    # ------------------------------------------------------------------ keys and actions

    async def press(self, key: str, character: str | None = None) -> None:
        """A key was pressed: do what the registry says it means now."""
        if self.prompt is not None:
            prompt = self.prompt
            if not prompt.press(key, character) and self.prompt is prompt:
                self.prompt = None
            self.draw()
            return
        action = self.keymap.action_for(key, editing=self.knobs.edit is not None, page=self._mode)
        if action is not None:
            method, argument = action.call
            await self.perform(method, int(key) if method == "digit" else argument)

    def handlers(self) -> tuple[object, ...]:
        """Who may have the method of an action, the nearest first."""
        over = [part for part in (self.panel, self.card) if part.open]
        return (*over, self.page, self.knob_hand, self.leaving, self)

    async def perform(self, method: str, argument: str | int | None = None) -> None:
        """Run one action of the registry and draw what came of it."""
        found = (getattr(handler, f"action_{method}", None) for handler in self.handlers())
        call = next((call for call in found if call is not None), None)
        if call is None:
            return
        result = call() if argument is None else call(argument)
        if asyncio.iscoroutine(result):
            await result
        self.page.changed += 1
        self.draw()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette lists the registry, except what only makes sense with a knob in hand."""
        for action in self.keymap.actions:
            if action.mode != "knob" and action.call[0] != "palette":
                method, argument = action.call
                title = str(argument) if method == "knob" else action.label
                call = lambda m=method, a=argument: self.call_later(self.perform, m, a)  # noqa: E731
                yield SystemCommand(title, f"{action.help} ({action.shown})", call)

    def action_open(self, name: str, argument: str | int | None = None) -> None:
        """Show a page; esc goes back to the one it was opened from. Live is the bottom of all."""
        self.page.closed()
        kept = self._trail[: self._trail.index(name)] if name in self._trail else self._trail
        self._trail = [LIVE] if name == LIVE else [*kept, name]
        self.page.opened(argument)

    def action_close(self) -> None:
        """Close what is open in the page, else the page."""
        if self.page.back() or len(self._trail) == 1:
            return
        self.page.closed()
        self._trail.pop()
        self.page.opened(None)

    def ask_cancel(self, request_id: str, user: str | None) -> None:
        """Ask, then end that request, whatever is selected by then."""
        from slotdeck.console.session.prompts import Question

        def confirmed() -> None:
            self.run_worker(self._cancel(request_id, user), group="commands", exit_on_error=False)

        self.prompt = Question(f"cancel {clean(user or request_id)}?", "its stream ends now", confirmed)

    async def _cancel(self, request_id: str, user: str | None) -> None:
        answer = await self.source.cancel(request_id)
        who = clean(user or request_id)
        self.say(
            f"{who} cancelled" if answer.ok else f"{who} not cancelled: {answer.message or 'refused'}",
            failed=not answer.ok,
        )

    def action_settings(self) -> None:
        """Open the panel of all settings."""
        self.panel.action_settings()

    async def action_load(self) -> None:
        """Start or stop simulated users."""
        if self._load is None:
            self.say("simulated users need an engine of one's own", failed=True)
            return
        try:
            if self._load.running:
                await asyncio.to_thread(self._load.stop)
                self.say("the simulated users left")
            else:
                self._load.start()
                self.say("")
        except OSError as error:
            self.say(f"simulated users: {error}", failed=True)

    def action_pause(self) -> None:
        """Freeze or thaw the view; the store goes on."""
        self._paused = None if self._paused else (self.store.view, self.clock())

    def action_rate(self) -> None:
        """Draw less often, or at full pace again."""
        slower = [rate for rate in RATES if rate < self._rate]
        self._rate = slower[0] if slower else RATES[0]
        often = f"{self._rate:g} times a second" if self._rate > 1 else f"every {1 / self._rate:g} s"
        self.say(f"drawn {often}")

    def action_copy(self) -> None:
        """Give the terminal what is selected, or the page, for its clipboard (OSC 52)."""
        text = self.page.copied()
        whole = text is None
        if text is None:
            text = "\n".join(plain(line).rstrip() for line in self.base.canvas.lines)
        self.copy_to_clipboard(text)
        self.say("the page was handed to the terminal's clipboard" if whole else f"{text.splitlines()[0]} was copied")

    def action_help(self) -> None:
        """Show the keys."""
        from slotdeck.console.screens.help import HelpScreen

        self.push_screen(HelpScreen(self.colours, self.keymap, ascii_only=self.ascii_only))

    def action_palette(self) -> None:
        """Find a command by its name."""
        self.action_command_palette()

    def action_next_theme(self) -> None:
        """Cycle through the themes."""
        names = list(self._themes)
        self._use_theme(names[(names.index(self.theme) + 1) % len(names)])
        self.say(f"theme {self.theme}")

    def _use_theme(self, name: str) -> None:
        if name in self._themes:
            self.theme = name
            self.base.canvas.use_theme(self.colours)

    def action_picture(self) -> None:
        """Save the screen as SVG."""
        folder = state_folder() / "screenshots"
        path = folder / time.strftime("slotdeck-%Y%m%d-%H%M%S.svg")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(self.export_screenshot(title="slotdeck"), "utf-8")
        except OSError as error:
            self.notify(f"no screenshot: {error}", markup=False, severity="error")
        else:
            self.notify(f"saved {path}", markup=False)

    def action_suspend(self) -> None:
        """Stop the console until the shell continues it."""
        if can_resume():
            self.action_suspend_process()
        else:
            self.say("no shell to come back from: ctrl+z does nothing here", failed=True)


def run_console(source: FrameSource, *, hosted: bool, socket: Path | None = None, notices: Iterable[str] = ()) -> int:
    """Run the console on this terminal until the admin leaves. Returns the exit code: 0, or 1 if it failed."""
    from slotdeck.console.terminal.configuration import load_configuration

    configuration = load_configuration()
    ascii_only = ascii_wanted() if configuration.ascii is None else configuration.ascii
    with own_screen(ascii_only):
        app = ConsoleApp(
            source, hosted=hosted, socket=socket, notices=notices, ascii_only=ascii_only, configuration=configuration,
            on_begun=collect_again,
        )  # fmt: skip
        code = app.run(mouse=configuration.mouse)
        failed = bool(app.return_code)
    if (end := app.store.view.end) is not None and not app.leaving.stopping:
        print(f"slotdeck: {end.sentence}", file=sys.stderr, flush=True)
    if failed:
        print(
            f"slotdeck: the console failed, see {console_log()}; the engine goes on serving",
            file=sys.stderr,
            flush=True,
        )
        return 1
    return code or 0
