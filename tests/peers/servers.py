"""The servers to compare: how each is started on a free port with the same threads, slots and context, and stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import psutil

from slotdeck.engine.paths import cache_folder
from tests.peers import weights
from tests.peers.installs import LLAMA_CPP, LLAMA_CPP_BUILT, OPENVINO, VLLM, Install, InstallError, python_of

THREADS = 2
SLOTS = 20
CONTEXT = 1024
"""Tokens of one request: prompt and answer."""
START_PATIENCE = 420.0
"""Seconds until a server must answer. vLLM compiles the model at its first start; later it takes half a minute."""
STOP_PATIENCE = 20.0
HERE = Path(__file__).parent
Say = Callable[[str], None]


@dataclass(frozen=True)
class Start:
    """A command that serves on ``port``, and further environment variables for it."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """A server and its name. ``prepare`` installs it and converts weights; it may raise InstallError."""

    name: str
    version: str
    prepare: Callable[[Say], Callable[[int, bool, Path], Start]]
    """Returns what makes a :class:`Start` from a port, whether to use a prefix cache, and a temporary folder."""


def _slotdeck(_: Say, checkout: Path | None = None) -> Callable[[int, bool, Path], Start]:
    def start(port: int, cache: bool, folder: Path) -> Start:
        settings = {
            "PORT": port,
            "SOCKET": folder / "engine.sock",
            "CONFIG": folder / "config.toml",
            "SLOTS": SLOTS,
            "CONTEXT": CONTEXT,
            "QUEUE": 256,
            "THREADS": THREADS,
            "PREFIX_CACHE": str(cache).lower(),
        }
        (folder / "config.toml").touch()
        environment = {f"SLOTDECK_{name}": str(value) for name, value in settings.items()}
        environment |= {"XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        if checkout is not None:
            environment["PYTHONPATH"] = f"{checkout / '.src'}:{checkout}"
        return Start([sys.executable, "-P", "-m", "slotdeck.engine", "serve"], environment)

    return start


def _script(name: str, install: Install, file: Callable[[Say], Path]) -> Callable[[Say], Callable[..., Start]]:
    def prepare(say: Say) -> Callable[[int, bool, Path], Start]:
        python, path = python_of(install, say), file(say)

        def start(port: int, cache: bool, folder: Path) -> Start:
            numbers = [str(number) for number in (port, THREADS, SLOTS, CONTEXT)]
            return Start([str(python), "-P", str(HERE / name), str(path), *numbers, "on" if cache else "off"])

        return start

    return prepare


def _llama_cpp_python(say: Say) -> Callable[[int, bool, Path], Start]:
    python, path = python_of(LLAMA_CPP_BUILT, say), weights.q8_0_file(say)

    def start(port: int, cache: bool, folder: Path) -> Start:
        # Its server computes one request at a time. Otherwise a new request would interrupt it.
        options = {"model": path, "host": "127.0.0.1", "port": port, "n_ctx": CONTEXT, "n_threads": THREADS}
        options |= {"n_threads_batch": THREADS, "cache": str(cache).lower(), "interrupt_requests": "false"}
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return Start([str(python), "-m", "llama_cpp.server", *flags])

    return start


def _vllm(say: Say) -> Callable[[int, bool, Path], Start]:
    python, folder = python_of(VLLM, say), weights.hugging_face_folder(say)
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}",
        "VLLM_CACHE_ROOT": str(VLLM.folder / "cache"),
        # vLLM's manual recommends it for CPUs; it is part of the wheel intel-openmp.
        "LD_PRELOAD": str(VLLM.folder / "lib" / "libiomp5.so"),
    }

    def start(port: int, cache: bool, _: Path) -> Start:
        options = ["--served-model-name", weights.NAME, "--dtype", "float32", "--max-model-len", str(CONTEXT)]
        options += ["--max-num-seqs", str(SLOTS), "--host", "127.0.0.1", "--port", str(port)]
        options += ["--enable-prefix-caching" if cache else "--no-enable-prefix-caching"]
        return Start([str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(folder), *options], environment)

    compiled = VLLM.folder / "compiled"
    if not compiled.exists():
        say("vLLM compiles the model, which takes minutes (first time only)")
        try:
            with running(start, cache=False):
                compiled.touch()
        except ServerError as error:
            raise InstallError(f"its first start failed: {error}") from error
    return start


def _q4_1(_: Say) -> Path:
    return weights.q4_1_file()


PEERS = {
    "slotdeck": Peer("Slotdeck int8", "", _slotdeck),
    "llama.cpp-q8": Peer(
        "llama.cpp Q8_0", LLAMA_CPP.version, _script("serve_llama_cpp.py", LLAMA_CPP, weights.q8_0_file)
    ),
    "llama.cpp-q4": Peer("llama.cpp Q4_1", LLAMA_CPP.version, _script("serve_llama_cpp.py", LLAMA_CPP, _q4_1)),
    "vllm": Peer("vLLM fp32", VLLM.version, _vllm),
    "openvino": Peer("OpenVINO Q8_0", OPENVINO.version, _script("serve_openvino.py", OPENVINO, weights.q8_0_file)),
    "llama-cpp-python": Peer("llama-cpp-python Q8_0", LLAMA_CPP_BUILT.version, _llama_cpp_python),
}


def baseline(checkout: Path) -> Peer:
    """Slotdeck of another checkout, run by this Python. It is shown, but does not count as a peer."""
    return Peer("Slotdeck baseline", "", partial(_slotdeck, checkout=checkout.resolve()))


DEFAULT_PEERS = ("slotdeck", "llama.cpp-q8", "llama.cpp-q4", "openvino", "vllm")
"""Without llama-cpp-python, which compiles for minutes and serves one request at a time."""


class ServerError(RuntimeError):
    """A server did not start. The message contains the end of its log."""


@dataclass(frozen=True)
class Running:
    """A server that answers. ``pid`` is its first process."""

    url: str
    pid: int
    start_seconds: float

    def resident_bytes(self) -> int:
        """Resident memory of all its processes."""
        try:
            first = psutil.Process(self.pid)
            return sum(process.memory_info().rss for process in [first, *first.children(recursive=True)])
        except psutil.Error:
            return 0


@contextmanager
def running(make: Callable[[int, bool, Path], Start], cache: bool) -> Iterator[Running]:
    """Run the server while this context is open. Raises ServerError."""
    with tempfile.TemporaryDirectory(prefix="slotdeck-peer-") as name:
        folder, port = Path(name), _free_port()
        start = make(port, cache, folder)
        mine = {key: value for key, value in os.environ.items() if not key.startswith("SLOTDECK_")}
        environment = mine | {"SLOTDECK_CACHE": str(cache_folder())} | start.environment
        began = time.monotonic()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                start.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _await_answer(process, url, folder / "log")
            yield Running(url, process.pid, time.monotonic() - began)
        finally:
            _stop(process)


def _await_answer(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_PATIENCE
    while True:
        try:
            if httpx.get(f"{url}/v1/models", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text("utf-8", "replace").strip().splitlines()[-4:]
            what = "ended" if process.poll() is not None else f"did not answer within {START_PATIENCE:.0f} s"
            raise ServerError(f"it {what}: " + " / ".join(line.strip()[:200] for line in lines))
        time.sleep(0.2)  # nothing to await: another program starts


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the processes of the session that was started, and nothing else."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGTERM:
            time.sleep(0.5)  # its children got the signal too; those that still live get the second one


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


__all__ = ["DEFAULT_PEERS", "PEERS", "InstallError", "Peer", "Running", "ServerError", "baseline", "running"]
