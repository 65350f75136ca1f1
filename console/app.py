"""The console: keeps the store fed, draws the Live screen four times a second, and sends what the admin decides.

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
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from console.actions import ACTIONS, action_for, bindings
from console.driver import ConsoleDriver
from console.knobs import Change, Knobs
from console.screens.live import Chrome, LiveScreen, scroll_limit, table_rows
from console.sources.base import Disconnected, FrameSource
from console.sources.simulated_users import LoadControl, SimulatedUsers
from console.status import StatusLine
from console.store import Store, View
from console.terminal import ascii_wanted, can_resume, console_log, own_screen
from console.themes import DEFAULT_ANSI, ConsoleTheme, load_themes
from engine.settings import state_folder

TICK = 0.25
"""Seconds between two looks at the store."""
BLURRED_TICKS = 4
"""Only every so many ticks draw while the terminal says that nobody looks."""
FORCED_EXIT_SECONDS = 3.0
"""Longest wait for an engine that was told to stop at once."""


class ConsoleApp(App[int], inherit_bindings=False):
    """The whole console. ``source`` gives frames; ``hosted`` says that this console started the engine.

    ``load`` runs simulated users; ``clock`` is monotonic seconds. The app's result is the exit code.
    """

    CSS_PATH = "app.tcss"
    TITLE = "slotdeck"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = list(bindings())

    def __init__(
        self,
        source: FrameSource,
        *,
        hosted: bool = False,
        socket: Path | None = None,
        notices: Iterable[str] = (),
        on_toggle_load: LoadControl | None = None,
        ascii_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        no_color = "NO_COLOR" in os.environ
        super().__init__(driver_class=ConsoleDriver, ansi_color=True if no_color else None)
        self.source = source
        self.hosted = hosted
        self.store = Store(clock)
        self.knobs = Knobs()
        self.leaving = ""
        """``asking``, ``stopping`` or ``forcing`` once the admin wants to leave a hosted engine."""
        self.leaving_problem = ""
        self._clock = clock
        self._notices = list(notices)
        self._load = on_toggle_load or (SimulatedUsers(socket) if socket is not None else None)
        self._users_shown: int | None = None
        self._ascii = ascii_only
        self._paused: tuple[View, float] | None = None
        self._offset = 0
        self._ticks = 0
        self._status = StatusLine(clock)
        self._themes, self._theme_problems = load_themes()
        for name, console_theme in self._themes.items():
            self.register_theme(console_theme.theme)
            if name == next(iter(self._themes)):
                self.theme = name
        if no_color and DEFAULT_ANSI in self._themes:
            self.theme = DEFAULT_ANSI
        self.live = LiveScreen(self._colours, ascii_only=ascii_only)

    # ------------------------------------------------------------------ start, tick, end

    @property
    def _colours(self) -> ConsoleTheme:
        return self._themes[self.theme]

    def get_default_screen(self) -> Screen[None]:
        """The Live screen is the bottom of everything."""
        return self.live

    def on_mount(self) -> None:
        """Begin to read and to draw."""
        if self._ascii:
            self.add_class("-ascii")
        if self.console.color_system in (None, "standard") and not self.is_headless:
            self._use_theme(DEFAULT_ANSI)
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.exit, 0)
        self.app_resume_signal.subscribe(self, self._resumed)
        for text in (*self._notices, *self._theme_problems):
            self.notify(text, markup=False, timeout=10)
        self.set_interval(TICK, self._tick)
        # The first paint comes before anything that takes time.
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.draw()
        self.run_worker(self._read(), group="source", exit_on_error=False)

    def _resumed(self, _app: App[object]) -> None:
        """Back from ctrl+z: the terminal kept nothing of the screen, and its size is the only thing it tells."""
        self.refresh(layout=True)

    async def _read(self) -> None:
        """Feed the store. Touches no widget: the tick draws."""
        try:
            async for update in self.source.updates():
                first = self.store.version == 0
                self.store.apply(update)
                if first:
                    self.call_later(self.draw)
                if not isinstance(update, Disconnected):
                    self.knobs.see(update)
                elif self.leaving in ("stopping", "forcing"):
                    self.exit(0)
                    return
        except Exception as error:
            self.log.error(error)
            self.store.apply(Disconnected(f"the console lost its source ({type(error).__name__}: {error})", final=True))

    def _tick(self) -> None:
        self._ticks += 1
        if not self.app_focus and self._ticks % BLURRED_TICKS:
            return
        if self._load is not None and (ended := self._load.ended_with()) is not None:
            self.say(ended, failed=True)
        self.draw()

    def draw(self) -> None:
        """Bring the Live screen, and the question above it, up to the newest view."""
        if not self.is_running or not self.live.is_mounted:
            return
        view = self._paused[0] if self._paused else self.store.view
        if self._paused and self.store.view.disconnected is not None and view.frame is not None:
            view = View(view.frame, self.store.view.disconnected, self.store.view.disconnected_at, events=view.events)
        self.live.show(view, self._chrome(view))
        if self.leaving and self.screen is not self.live and hasattr(self.screen, "refresh_text"):
            self.screen.refresh_text()

    def on_resize(self) -> None:
        """The size decides the layout."""
        self.draw()

    async def on_unmount(self) -> None:
        """Simulated users go when the console goes."""
        if self._load is not None:
            await asyncio.to_thread(self._load.stop)

    def _chrome(self, view: View) -> Chrome:
        now = self._clock()
        lost = self.store.view.disconnected_at
        return Chrome(
            status=self._status.show(self.knobs, self.store.view.frame),
            editing=self.knobs.edit is not None,
            paused_for=float(int(now - self._paused[1])) if self._paused else None,
            disconnected_for=None if lost is None else float(int(now - lost)),
            offset=self._offset,
            users=self._load.users if self._load is not None and self._load.running else None,
            can_load=self._load is not None,
        )

    # ------------------------------------------------------------------ the status line

    def say(self, text: str, *, failed: bool = False) -> None:
        """Put a sentence on the status line for a while."""
        self.knobs.message, self.knobs.failed = text, failed

    # ------------------------------------------------------------------ actions

    async def action_press(self, key: str) -> None:
        """A key was pressed: do what the registry says it means now."""
        action = action_for(key, editing=self.knobs.edit is not None)
        if action is not None:
            method, argument = action.call
            await self.perform(method, int(key) if method == "digit" else argument)

    async def perform(self, method: str, argument: str | int | None = None) -> None:
        """Run one action of the registry and draw what came of it."""
        result = getattr(self, f"action_{method}")(*(() if argument is None else (argument,)))
        if asyncio.iscoroutine(result):
            await result
        self.draw()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette lists the registry, except what only makes sense with a knob in hand."""
        for action in ACTIONS:
            if action.mode != "knob" and action.call[0] != "palette":
                method, argument = action.call
                title = f"{action.label} {argument}" if method == "knob" else action.label
                call = lambda m=method, a=argument: self.call_later(self.perform, m, a)  # noqa: E731
                yield SystemCommand(title, f"{action.help} ({action.shown})", call)

    def action_knob(self, name: str) -> None:
        """Take a setting in hand."""
        if self.store.view.frame is None or self.store.view.disconnected is not None:
            self.say("no engine is connected, so nothing can be changed", failed=True)
        else:
            self.knobs.select(name, self.store.view.limits)

    def action_step(self, direction: int) -> None:
        """Turn the knob in hand."""
        self.knobs.step(direction)

    def action_digit(self, digit: int) -> None:
        """Type a number."""
        self.knobs.type(str(digit))

    def action_erase(self) -> None:
        """Take a digit back."""
        self.knobs.erase()

    def action_drop(self) -> None:
        """Let the knob go."""
        self.knobs.drop()

    def action_apply(self) -> None:
        """Send the knob's value."""
        self._send(self.knobs.apply())

    def action_undo(self) -> None:
        """Take the last change back, unless someone else changed a setting since."""
        self._send(self.knobs.undo())

    def _send(self, order: tuple[Change, int] | None) -> None:
        if order is not None:
            self.run_worker(self._change(*order), group="commands", exit_on_error=False)

    async def _change(self, change: Change, revision: int) -> None:
        self.knobs.answered(await self.source.change({change.name: change.after}, revision))

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
        self._paused = None if self._paused else (self.store.view, self._clock())

    def action_scroll(self, rows: int) -> None:
        """Move through the slots."""
        limit = scroll_limit(self.store.view, self.size.width, self.size.height)
        self._offset = max(0, min(self._offset + rows, limit))

    def action_page(self, direction: int) -> None:
        """Move by a page."""
        self.action_scroll(direction * max(1, table_rows(self.store.view, *self.size) - 2))

    def action_end(self, direction: int) -> None:
        """Move to the first or the last slots."""
        self.action_scroll(direction * 10**6)

    def action_help(self) -> None:
        """Show the keys."""
        from console.screens.help import HelpScreen

        self.push_screen(HelpScreen(self._colours, ascii_only=self._ascii))

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
            self.live.canvas.use_theme(self._colours)

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

    # ------------------------------------------------------------------ leaving

    def action_leave(self) -> None:
        """Quit. A hosted engine is stopped too, after asking if it has requests; any other goes on serving."""
        view = self.store.view
        if not self.hosted or view.frame is None or view.disconnected is not None:
            self.exit(0)
            return
        from console.screens.leave import LeaveScreen

        self.leaving, self.leaving_problem = "asking", ""
        self.push_screen(LeaveScreen(self._colours, ascii_only=self._ascii))
        if view.in_flight == 0:
            self.choose_leaving("stop")

    def choose_leaving(self, choice: str) -> None:
        """The answer to the question: ``stop``, ``leave``, ``stay`` or ``force``."""
        if choice == "leave" or self.store.view.disconnected is not None:
            self.exit(0)
        elif choice == "stay" and self.leaving == "asking":
            self.leaving = ""
            self.pop_screen()
        elif choice == "force" and self.leaving == "forcing":
            self.exit(0)
        elif choice == "force" or (choice == "stop" and self.leaving == "asking"):
            self.leaving = "forcing" if choice == "force" else "stopping"
            self.run_worker(self._stop_engine(force=choice == "force"), group="stopping", exit_on_error=False)
        self.draw()

    async def _stop_engine(self, *, force: bool) -> None:
        """Ask the engine to end; the end of its frames ends the console. A refusal goes back to the question."""
        answer = await self.source.shutdown(force)
        if not answer.ok and self.store.view.disconnected is None:
            self.leaving = "asking"
            self.leaving_problem = f"the engine does not stop: {answer.message or 'no reason given'}"
        elif force or self.store.view.disconnected is not None:
            if force:
                await asyncio.sleep(FORCED_EXIT_SECONDS)
            self.exit(0)


def run_console(source: FrameSource, *, hosted: bool, socket: Path | None = None, notices: Iterable[str] = ()) -> int:
    """Run the console on this terminal until the admin leaves. Returns the exit code: 0, or 1 if it failed."""
    ascii_only = ascii_wanted()
    with own_screen(ascii_only):
        app = ConsoleApp(source, hosted=hosted, socket=socket, notices=notices, ascii_only=ascii_only)
        code = app.run(mouse=False)
        failed = bool(app.return_code)
    if failed:
        print(
            f"slotdeck: the console failed, see {console_log()}; the engine goes on serving",
            file=sys.stderr,
            flush=True,
        )
        return 1
    return code or 0
