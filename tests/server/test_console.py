"""However the console ends, the streams of the engine go on."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pexpect

from tests.support.stub_server import RunningServer

CONSOLE = "from slotdeck.console.cli.main import run; run()"


def test_kill_9_of_the_console_while_streams_go_on(server: RunningServer) -> None:
    server.runner.gate.clear()  # a step lasts until the gate opens again
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(server.chat, "sing", max_tokens=40, stream=True) for _ in range(3)]
        # Requests that came before the step began are in it. The others wait for its end.
        server.until(lambda frame: frame.running and frame.running + frame.waiting_count == 3)
        command = ["-c", CONSOLE, "attach", "--socket", str(server.settings.socket)]
        with pexpect.spawn(sys.executable, command, timeout=30, dimensions=(24, 80)) as terminal:
            terminal.expect("KV pool")
            os.killpg(terminal.pid, signal.SIGKILL)
            terminal.expect(pexpect.EOF)
        assert server.frame().running
        server.runner.gate.set()
        texts = [answer.result(20).text for answer in answers]
    for text in texts:
        assert '"finish_reason":"length"' in text.replace(" ", "")
        assert text.rstrip().endswith("data: [DONE]")
