"""Recorded traffic as scripts for the simulator: what would it have been like under other settings?

A history records numbers only, so a conversation is recognised by them: a prompt that is longer than the same user's
last prompt and answer together continues that conversation. A request that came within some minutes of an answer is
assumed to follow from it, so a faster answer brings it sooner. A request that came later keeps its time. Refused
requests are not recorded, so they are not replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slotdeck.console.advice.calibration import Calibration
from slotdeck.console.advice.simulation_result import SimulationResult
from slotdeck.console.advice.simulator import Simulator
from slotdeck.console.advice.step_model import StepTimes
from slotdeck.console.advice.traffic import Turn, User
from slotdeck.engine.settings import BLOCK_SIZE, LiveSettings
from slotdeck.engine.telemetry.history.schema import RequestRecord

MAX_READING = 300.0
"""Seconds after an answer within which the user's next request is assumed to follow from it."""
MIN_GROWTH = 4
"""The fewest tokens that another message adds to a conversation, including its part of the template."""


@dataclass
class _Chain:
    """Requests of one user that came one after another. ``ended`` is when the last one ended, ``length`` its tokens."""

    user: str
    ended: float
    length: int
    turns: list[Turn] = field(default_factory=list)


def users_of(records: Sequence[RequestRecord]) -> list[User]:
    """Scripts of the recorded requests, starting with the first arrival.

    A user with several requests at once becomes as many simulated users of the same name.
    """
    known = [
        (record.ended - record.duration, record)
        for record in records
        if record.duration is not None and record.prompt_tokens and record.output_tokens
    ]
    if not known:
        return []
    known.sort(key=lambda pair: pair[0])
    start = known[0][0]
    chains: list[_Chain] = []
    for arrival, record in known:
        user, prompt, output = record.user or "", record.prompt_tokens or 0, record.output_tokens or 0
        free = [chain for chain in chains if chain.user == user and chain.ended <= arrival]
        continued = [chain for chain in free if prompt >= chain.length + MIN_GROWTH]
        chain = max(continued or free, key=lambda chain: chain.ended, default=None)
        if chain is None:
            chain = _Chain(user, ended=float("-inf"), length=0)
            chains.append(chain)
        pause = arrival - chain.ended
        fresh = not continued or chain.length == 0
        chain.turns.append(
            Turn(
                think=max(0.0, pause) if pause <= MAX_READING else 0.0,
                message=prompt if fresh else prompt - chain.length,
                answer=output,
                fresh=fresh,
                at=None if pause <= MAX_READING else arrival - start,
            )
        )
        chain.ended, chain.length = record.ended, prompt + output
    return [User(chain.user, chain.turns, seconds=float("inf")) for chain in chains]


def replay(
    records: Sequence[RequestRecord], settings: LiveSettings, calibration: Calibration, seed: int = 1
) -> SimulationResult:
    """What the recorded requests would have got under these settings."""
    return simulate(users_of(records), settings, calibration, seed)


def simulate(
    users: Sequence[User], settings: LiveSettings, calibration: Calibration, seed: int = 1
) -> SimulationResult:
    """Run these users once on the calibrated machine."""
    block_bytes = calibration.kv_bytes_per_token * BLOCK_SIZE
    simulator = Simulator(
        settings,
        StepTimes(calibration.served, seed),
        calibration.edge,
        block_bytes=block_bytes,
        block_copy_seconds=block_bytes / calibration.kv_copy_bytes_per_second,
    )
    return simulator.run(users)
