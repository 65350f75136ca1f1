"""``python -m tests.peers``: Slotdeck and other servers in turn, on the same weights, seen by the same client.

Rounds are interleaved: each takes every server once. Two threads each, 20 slots of 1,024 tokens; answers of up to 64
tokens at temperature 0. The tables show medians over the rounds and the longest gap of all.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import signal
import sys
import time
from pathlib import Path

import psutil
from rich.console import Console

from slotdeck.console.bench.machine import describe_machine, machine_line
from slotdeck.console.load.client import RequestFailedError
from slotdeck.engine.model.load import find_model
from tests.peers.installs import InstallError
from tests.peers.measure import Round, measure_chat, measure_users, memory_bandwidth
from tests.peers.report import BASELINE, OURS, Facts, print_tables, targets
from tests.peers.servers import CONTEXT, DEFAULT_PEERS, PEERS, SLOTS, THREADS, ServerError, baseline, running

SCALES = 1 + 2 / 64
"""Bytes of an int8 weight, with its share of the fp32 scale of its group."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", default=",".join(DEFAULT_PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--baseline", type=Path, help="also measure Slotdeck of this other checkout, in each round")
    parser.add_argument("--users", default="1,2,5,20")
    parser.add_argument("--minutes", type=float, default=15, help="no server is started after these")
    parser.add_argument("--output", type=Path, help="also write everything to this file as JSON")
    parser.add_argument("--install", action="store_true", help="only install the peers and write their weights")
    arguments = parser.parse_args()
    wanted = arguments.peers.split(",")
    if unknown := [name for name in wanted if name not in PEERS]:
        parser.error(f"unknown peers: {', '.join(unknown)}; known are {', '.join(PEERS)}")
    peers = dict(PEERS)
    if arguments.baseline is not None:
        if not (arguments.baseline / ".src" / "slotdeck").is_dir():
            parser.error(f"{arguments.baseline} is not a checkout of Slotdeck")
        peers[BASELINE] = baseline(arguments.baseline)
        wanted.append(BASELINE)
    users = [int(count) for count in arguments.users.split(",")]

    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # an exception, so that the servers are stopped
    starts, left_out = {}, {}
    for name in wanted:
        try:
            starts[name] = peers[name].prepare(say)
        except InstallError as error:
            left_out[name] = str(error)
            say(f"{name} is left out: {error}")
    if arguments.install:
        return 1 if left_out else 0

    machine = describe_machine()
    load = psutil.getloadavg()[0]
    say(f"load average before the run {load:.2f}" + (": this machine is busy" if load > 0.5 else ""))
    config = find_model("smollm2").config
    per_token = config.kv_bytes_per_token("bf16")
    embedding = config.vocab_size * config.hidden_size
    packed = int(config.num_parameters * SCALES)
    results: dict[str, list[Round]] = {name: [] for name in starts}
    deadline = time.monotonic() + arguments.minutes * 60
    for number in range(arguments.rounds):
        for name, make in starts.items():
            if name in left_out:
                continue
            if time.monotonic() > deadline:
                say(f"{arguments.minutes:g} minutes are over: {name} has no round {number + 1}")
                continue
            say(f"round {number + 1}: {peers[name].name}")
            one = Round()
            if name == OURS:  # in each round, because it changes on a shared machine
                one.bandwidth = memory_bandwidth(THREADS)
                say(f"  {one.bandwidth / 1e9:.1f} GB/s read from memory")
            try:
                with running(make, cache=False) as server:
                    one.start_seconds = server.start_seconds
                    one.points += asyncio.run(measure_users(server.url, users, number))
                    one.resident_bytes = server.resident_bytes()
                with running(make, cache=True) as server:
                    one.points.append(asyncio.run(measure_chat(server.url, number)))
            except (ServerError, RequestFailedError) as error:
                left_out[name] = str(error)
                say(f"{name} is left out: {error}")
            if one.points:
                results[name].append(one)
                speeds = ", ".join(f"{point.load}: {point.tokens_per_second or 0:.0f}" for point in one.points)
                say(f"  tok/s {speeds}; started in {one.start_seconds:.1f} s, {one.resident_bytes >> 20} MiB")
    results = {name: rounds for name, rounds in results.items() if rounds}
    # The tied embedding is kept a second time, in bf16, to look tokens up.
    kept = packed + 2 * embedding + per_token * SLOTS * CONTEXT
    facts = Facts(packed, kept)
    console = Console(width=120)
    console.print(f"machine  {machine_line(machine)}")
    spread = ", ".join(f"{one.bandwidth / 1e9:.1f}" for one in results.get(OURS, []) if one.bandwidth)
    console.print(f"         GB/s read from memory, round by round: {spread}; load average before the run {load:.2f}")
    for name in results:
        version = f" {peers[name].version}" if peers[name].version else ""
        console.print(f"server   {peers[name].name}{version}, {len(results[name])} rounds")
    for name, reason in left_out.items():
        console.print(f"left out {peers[name].name}: {reason}", markup=False)
    print_tables(results, {name: peers[name].name for name in results}, console)
    judged = targets(results, facts) if OURS in results and len(results) > 1 else []
    for target in judged:
        console.print(f"{'reached' if target['reached'] else 'MISSED '}  {target['target']}; found {target['found']}")
    if arguments.output is not None:
        document = {
            "machine": machine,
            "facts": dataclasses.asdict(facts),
            "load_average": load,
            "versions": {name: peers[name].version for name in results},
            "left_out": left_out,
            "rounds": {name: [dataclasses.asdict(one) for one in rounds] for name, rounds in results.items()},
            "targets": judged,
        }
        arguments.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
