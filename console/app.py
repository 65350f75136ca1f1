"""The console as a Textual app: it starts, draws, hands keys over and ends.

It only watches and commands. Whatever happens to it, the engine and the streams it serves go on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import App, SystemCommand
from textual.driver import Driver
from textual.screen import Screen

from slotdeck.console.drawing.cells import plain
from slotdeck.console.screens.page_screen import PageScreen
from slotdeck.console.terminal.configuration import ConsoleConfiguration
from slotdeck.console.terminal.driver import ConsoleDriver
from slotdeck.console.terminal.environment import ascii_wanted, can_resume, console_log, own_screen
from slotdeck.console.terminal.startup import NonBlockingExecutor, collect_again
from slotdeck.console.terminal.themes import DEFAULT_ANSI, ConsoleTheme, load_themes
from slotdeck.engine.paths import state_folder

if TYPE_CHECKING:  # imported after the first paint, because frames and settings take their time
    from slotdeck.console.keys.actions import Command
    from slotdeck.console.pages.page import Page
    from slotdeck.console.processes.simulated_users import LoadControl
    from slotdeck.console.services import Services
    from slotdeck.console.sources.base import FrameSource
    from slotdeck.console.state.store import View

TICK = 0.25
"""Seconds between two looks at the store."""
BLURRED_TICKS = 4
"""While the terminal reports that it has no focus, only every fourth tick draws."""
RATES = (4.0, 2.0, 1.0, 0.5)
"""Drawings per second that the key for the refresh rate goes through."""


class ConsoleApp(App[int], inherit_bindings=False):
    """The whole console. The app's result is the exit code.

    ``source`` gives frames; ``hosted`` says that this console started the engine, whose admin socket is ``socket``.
    ``notices`` are shown at the start, ``load`` runs simulated users, ``clock`` is monotonic seconds, and ``on_begun``
    is called once everything is imported and drawn. ``driver`` is how Textual talks to the terminal.
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
        load: LoadControl | None = None,
        ascii_only: bool = False,
        configuration: ConsoleConfiguration | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_begun: Callable[[], None] = lambda: None,
        driver: type[Driver] = ConsoleDriver,
    ) -> None:
        no_color = "NO_COLOR" in os.environ
        super().__init__(driver_class=driver, ansi_color=True if no_color else None)
        configuration = configuration or ConsoleConfiguration()
        self.ascii_only = ascii_only
        self._source = source
        self._hosted = hosted
        self._socket = socket
        self._load = load
        self._clock = clock
        self._configuration = configuration
        self._on_begun = on_begun
        self._begun = False
        """The first paint is done."""
        self._drawn: tuple[Page, View] | None = None
        """What was drawn last."""
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
        self.base = PageScreen(self.colours, self.press, ascii_only=ascii_only)

    @cached_property
    def services(self) -> Services:
        """Everything that is not Textual. Made when first needed, which is after the first paint."""
        from slotdeck.console.keys.actions import Command
        from slotdeck.console.services import Services

        services = Services(
            self._source, self, clock=self._clock, keys=self._configuration.keys, hosted=self._hosted,
            socket=self._socket, load=self._load, ask_how_to_leave=self._ask_how_to_leave,
        )  # fmt: skip
        services.handlers |= {
            Command.COPY: self._copy,
            Command.REFRESH_RATE: self._next_rate,
            Command.HELP: self._show_help,
            Command.PALETTE: self.action_command_palette,
            Command.NEXT_THEME: self._next_theme,
            Command.SCREENSHOT: self._save_screenshot,
            Command.SUSPEND: self._suspend,
        }
        return services

    # ------------------------------------------------------------------ start, tick, end

    @property
    def colours(self) -> ConsoleTheme:
        """The theme in force."""
        return self._themes[self.theme]

    def get_default_screen(self) -> Screen[None]:
        """The page lies below all other screens."""
        return self.base

    def on_mount(self) -> None:
        """Begin to read and to draw."""
        if self.ascii_only:
            self.add_class("-ascii")
        if self.console.color_system in (None, "standard") and not self.is_headless and not self._chosen_theme:
            self.use_theme(DEFAULT_ANSI)
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(NonBlockingExecutor())
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.exit, 0)
        self.app_resume_signal.subscribe(self, self._on_resume)
        # The first paint comes before anything that takes time.
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        for text in (*self._notices, *self.services.keymap.problems):
            self.notify(text, markup=False, timeout=10)
        self._begun = True
        self.draw()
        self.set_interval(TICK, self._tick)
        following = self.services.session.follow(lambda: self.call_later(self.draw), self._on_lost)
        self.run_in_background(following, "source")
        self._on_begun()

    def _on_resume(self, _app: App[object]) -> None:
        """After ctrl+z the terminal may have forgotten the screen, and its size may have changed."""
        self.refresh(layout=True)

    def _on_lost(self) -> bool:
        """The source lost its engine. If the engine was told to stop, the console ends."""
        if self.services.leaving.stopping:
            self.exit(0)
        return self.services.leaving.stopping

    def _tick(self) -> None:
        self._ticks += 1
        every = max(1, round(1 / (self._rate * TICK)))
        if not self.app_focus:
            every = max(every, BLURRED_TICKS)
        if self._ticks % every:
            return
        self.services.load.check()
        self.draw()

    def on_resize(self) -> None:
        """Lay the page out anew."""
        self.draw()

    async def on_unmount(self) -> None:
        """Simulated users stop when the console ends."""
        if self._begun:
            await self.services.load.stop()

    # ------------------------------------------------------------------ what the session asks of its host

    @property
    def terminal_size(self) -> tuple[int, int]:
        """Width and height of the terminal in cells."""
        return self.size.width, self.size.height

    def run_in_background(self, work: Coroutine[Any, Any, None], group: str, *, exclusive: bool = False) -> None:
        """Run ``work`` beside everything else. With ``exclusive`` it replaces earlier work of the same group."""
        self.run_worker(work, group=group, exclusive=exclusive, exit_on_error=False)

    def end(self, code: int) -> None:
        """End the console with an exit code."""
        self.exit(code)

    def draw(self) -> None:
        """Bring the page, and the question above it, up to the newest view."""
        if not self._begun or not self.is_running or not self.base.is_mounted:
            return
        services = self.services
        page, view = services.navigator.page, services.display.view
        if self._drawn is None or self._drawn[0] is not page or self._drawn[1] is not view:
            self._drawn = page, view
            page.on_view(view)
        self.base.show(page, view, services.chrome(view, *self.terminal_size))
        if services.leaving.stage and self.screen is not self.base and hasattr(self.screen, "refresh_text"):
            self.screen.refresh_text()

    # ------------------------------------------------------------------ keys and commands

    async def press(self, key: str, character: str | None = None) -> None:
        """Give a key to the open prompt, or else do what the registry says it means now."""
        services = self.services
        if services.status.press(key, character):
            services.navigator.page.changed += 1
            self.draw()
        elif (meaning := services.command_for(key)) is not None:
            await self.perform(*meaning)

    async def perform(self, command: Command, argument: str | int | None = None) -> None:
        """Carry out one command of the registry, and draw the result."""
        handler = self.services.handler_for(command)
        if handler is None:
            return
        result = handler() if argument is None else handler(argument)
        if asyncio.iscoroutine(result):
            await result
        self.services.navigator.page.changed += 1
        self.draw()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette lists the registry, except what only makes sense while a setting is edited."""
        from slotdeck.console.keys.actions import Command

        for action in self.services.keymap.actions:
            if action.mode != "editing" and action.command is not Command.PALETTE:
                title = str(action.argument) if action.command is Command.EDIT_SETTING else action.label
                call = lambda a=action: self.call_later(self.perform, a.command, a.argument)  # noqa: E731
                yield SystemCommand(title, f"{action.help} ({action.shown})", call)

    def _ask_how_to_leave(self) -> None:
        from slotdeck.console.screens.leave import LeaveScreen

        self.push_screen(LeaveScreen(self.colours, self.services.leaving, ascii_only=self.ascii_only))

    def _next_rate(self) -> None:
        """Draw less often, or again at the full rate."""
        slower = [rate for rate in RATES if rate < self._rate]
        self._rate = slower[0] if slower else RATES[0]
        often = f"{self._rate:g} times a second" if self._rate > 1 else f"every {1 / self._rate:g} s"
        self.services.status.say(f"drawn {often}")

    def _copy(self) -> None:
        """Send what is selected, or the page, to the terminal's clipboard (OSC 52)."""
        text = self.services.navigator.page.copied()
        whole = text is None
        if text is None:
            text = "\n".join(plain(line).rstrip() for line in self.base.canvas.lines)
        self.copy_to_clipboard(text)
        self.services.status.say("the page was copied" if whole else f"{text.splitlines()[0]} was copied")

    def _show_help(self) -> None:
        from slotdeck.console.keys.actions import Command
        from slotdeck.console.screens.help import HelpScreen

        quit_console = lambda: self.perform(Command.QUIT)  # noqa: E731
        self.push_screen(HelpScreen(self.colours, self.services.keymap, quit_console, ascii_only=self.ascii_only))

    def _next_theme(self) -> None:
        names = list(self._themes)
        self.use_theme(names[(names.index(self.theme) + 1) % len(names)])
        self.services.status.say(f"theme {self.theme}")

    def use_theme(self, name: str) -> None:
        """Draw everything in another theme, if there is one of that name."""
        if name in self._themes:
            self.theme = name
            self.base.canvas.use_theme(self.colours)

    def _save_screenshot(self) -> None:
        """Save the screen as SVG in the state folder."""
        folder = state_folder() / "screenshots"
        path = folder / time.strftime("slotdeck-%Y%m%d-%H%M%S.svg")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(self.export_screenshot(title="slotdeck"), "utf-8")
        except OSError as error:
            self.notify(f"no screenshot: {error}", markup=False, severity="error")
        else:
            self.notify(f"saved {path}", markup=False)

    def _suspend(self) -> None:
        """Stop the console until the shell continues it."""
        if can_resume():
            self.action_suspend_process()
        else:
            self.services.status.say("ctrl+z does nothing here: there is no shell to return to", failed=True)


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
    if (end := app.services.session.store.view.end) is not None and not app.services.leaving.stopping:
        print(f"slotdeck: {end.sentence}", file=sys.stderr, flush=True)
    if failed:
        print(
            f"slotdeck: the console failed, see {console_log()}; the engine goes on serving",
            file=sys.stderr,
            flush=True,
        )
        return 1
    return code or 0
