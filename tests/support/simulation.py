"""A simulated run of four agents for six seconds."""

from __future__ import annotations

from slotdeck.console.advice.recorded import simulate
from slotdeck.console.advice.simulation_result import SimulationResult
from slotdeck.console.advice.traffic import Traffic, User
from slotdeck.engine.settings import LiveSettings
from tests.support.calibration import CALIBRATION

TRAFFIC = Traffic("agent", 4, 6.0, 512)


def run(settings: LiveSettings) -> SimulationResult:
    users = [User(name, TRAFFIC.script(number), TRAFFIC.seconds) for number, name in enumerate(TRAFFIC.names())]
    return simulate(users, settings, CALIBRATION)
