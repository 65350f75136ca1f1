"""The probe against a real llama.cpp server with one slot and with four, on the embedded model.

Runs where ``LLAMA_PYTHON`` names a Python that has ``xllamacpp`` (``pip install xllamacpp`` in a virtual environment of
its own), and is skipped elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from slotdeck.console.probe.report import as_text
from slotdeck.console.probe.run import Limits, probe
from slotdeck.engine.model.fetch import embedded_model_path

PYTHON = os.environ.get("LLAMA_PYTHON")
SERVER = Path(__file__).with_name("llama_server.py")
PATIENCE = 60.0


@contextmanager
def llama_server(slots: int, context: int) -> Iterator[str]:
    """Base URL of a server with ``slots`` slots of ``context`` tokens each."""
    assert PYTHON is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PYTHON, str(SERVER), str(embedded_model_path()), str(port), str(slots), str(slots * context)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, stdin=subprocess.PIPE, **quiet) as process:  # type: ignore[call-overload]
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + PATIENCE
        while True:
            assert process.poll() is None, "llama.cpp's server ended"
            assert time.monotonic() < deadline, "llama.cpp's server does not come up"
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)  # nothing to await: the process is starting
        try:
            yield url
        finally:
            process.terminate()


@pytest.mark.model
@pytest.mark.skipif(PYTHON is None, reason="LLAMA_PYTHON names no Python with xllamacpp")
@pytest.mark.parametrize(("slots", "verdicts"), [(1, {"queued"}), (4, {"batched", "sharing bandwidth"})])
def test_a_real_server_is_told_right(slots: int, verdicts: set[str]) -> None:
    with llama_server(slots, 1024) as url:
        report = asyncio.run(probe(url, None, None, Limits(at_once=6, longest=2048, seconds=300), print))
    print(as_text(report))
    assert report.server == "llamacpp"
    assert report.pair is not None
    assert report.pair.verdict in verdicts
    assert report.slots is not None
    assert report.slots.at_once == slots
    assert report.cut is not None
    assert (report.cut.verdict, report.cut.told) == ("refused", 1024)
