"""The traffic that an engine recorded, as scripts for the simulator: what would it have been like under other settings?

Only numbers are recorded, so a conversation is recognised by them: a prompt that is longer than the same user's last
prompt and answer together goes on from there. Who asked again within some minutes of an answer is taken to have read
it first, so a faster answer brings the next question sooner; who came later comes when they came. Requests that were
refused are not recorded, and so not replayed. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slotdeck.console.advice.calibration import Calibration
from slotdeck.console.advice.outcome import Outcome
from slotdeck.console.advice.simulator import Simulator
from slotdeck.console.advice.step_model import StepTimes
from slotdeck.console.advice.traffic import Turn, User
from slotdeck.engine.settings import BLOCK_SIZE, LiveSettings
from slotdeck.engine.telemetry.history.schema import RequestRecord

MAX_READING = 300.0
"""Seconds after an answer within which the next request is taken to wait for it."""
MIN_GROWTH = 4
"""Tokens that a next message has at least, its part of the template included."""


@dataclass
class _Chain:
    """Requests of one user that came one after another."""

    user: str
    ended: float
    length: int
    turns: list[Turn] = field(default_factory=list)


def users_of(records: Sequence[RequestRecord]) -> list[User]:
    """Scripts of what was recorded, from the first arrival on; each user as often as they had requests at once."""
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
        going_on = [chain for chain in free if prompt >= chain.length + MIN_GROWTH]
        chain = max(going_on or free, key=lambda chain: chain.ended, default=None)
        if chain is None:
            chain = _Chain(user, ended=float("-inf"), length=0)
            chains.append(chain)
        pause = arrival - chain.ended
        fresh = not going_on or chain.length == 0
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
) -> Outcome:
    """What the recorded requests would have got under these settings."""
    return simulate(users_of(records), settings, calibration, seed)


def simulate(users: Sequence[User], settings: LiveSettings, calibration: Calibration, seed: int = 1) -> Outcome:
    """One run on the machine of the calibration."""
    block_bytes = calibration.kv_bytes_per_token * BLOCK_SIZE
    simulator = Simulator(
        settings,
        StepTimes(calibration.served, seed),
        calibration.edge,
        block_bytes=block_bytes,
        block_copy_seconds=block_bytes / calibration.kv_copy_bytes_per_second,
    )
    return simulator.run(users)
