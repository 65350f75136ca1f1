"""Textual's Linux driver with an input loop that no terminal can break.

Bytes that are not UTF-8 (old mouse codes after a tmux or ssh re-attach), sequences the parser cannot take and a
terminal that hung up are ordinary events here, not crashes and not a busy loop.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import selectors
import signal

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size
from textual.message import Message

_OLD_MOUSE = re.compile(rb"\x1b\[M[\x00-\xff]{3}")
"""A mouse report in the old X10 encoding: its three bytes are coordinates, not text."""

READ_BYTES = 4096
WAIT = 0.1
"""Seconds after which the loop checks whether it should end and lets the parser time out a lone escape."""


class ConsoleDriver(LinuxDriver):
    """Reads keys. Drops mouse events while the mouse is off."""

    def start_application_mode(self) -> None:
        """Textual reads the terminal's size in a signal handler. Another signal can interrupt it right there.

        Then the older size is posted last and stays. The event loop runs its handlers one after the other.
        """
        super().start_application_mode()
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, self._post_size)

    def _post_size(self) -> None:
        if not self._in_band_window_resize:
            size = Size(*self._get_terminal_size())
            self._app.post_message(events.Resize(size, size))

    def run_input_thread(self) -> None:
        """Read until told to stop. If the terminal is gone, the console ends and the engine goes on."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        parser = XTermParser(self._debug)
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                try:
                    if selector.select(WAIT):
                        data = os.read(self.fileno, READ_BYTES)
                        if not data:
                            raise OSError("end of file on the terminal")
                        for message in parser.feed(decoder.decode(_OLD_MOUSE.sub(b"", data))):
                            self.process_message(message)
                    for message in parser.tick():
                        self.process_message(message)
                except OSError:
                    self._app.call_later(self._app.exit)
                    return
                except Exception:
                    parser = XTermParser(self._debug)

    def process_message(self, message: Message) -> None:
        """Hand a message to the app, except undecodable keys, and mouse events while the mouse is off."""
        if isinstance(message, events.MouseEvent) and not self._mouse:
            return
        if isinstance(message, events.Key) and message.character == "\ufffd":
            return
        super().process_message(message)
