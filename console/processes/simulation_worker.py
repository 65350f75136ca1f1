"""Simulations in a process of their own, so that they never delay a key or a frame.

``python -m slotdeck.console.processes.simulation_worker`` reads a :class:`Job` from standard input and writes the
results to standard output. It runs with low priority.
"""

from __future__ import annotations

import asyncio
import os
import sys

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from slotdeck.console.advice.calibration import Calibration
from slotdeck.console.advice.forecast import People, ServiceForecast, forecast_service
from slotdeck.engine.settings import LiveSettings

NICE = 10
MAX_SECONDS = 60.0
"""Longest time for a simulation."""
_ANSWER = TypeAdapter(list[ServiceForecast])


class Job(BaseModel):
    """The same users, to be simulated under each of the settings."""

    model_config = ConfigDict(frozen=True)

    people: People
    settings: tuple[LiveSettings, ...]
    calibration: Calibration


async def simulate(job: Job) -> list[ServiceForecast] | str:
    """The result for each of the settings, or one sentence that says why there is none.

    If this is cancelled, the process is killed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "slotdeck.console.processes.simulation_worker",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(MAX_SECONDS):
            output, _ = await process.communicate(job.model_dump_json().encode())
        return _ANSWER.validate_json(output)
    except TimeoutError:
        return f"the simulation took more than {MAX_SECONDS:.0f} s and was stopped"
    except ValidationError:
        return f"the simulation failed (exit code {process.returncode})"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def main() -> None:
    os.nice(NICE)
    job = Job.model_validate_json(sys.stdin.buffer.read())
    found = [forecast_service(job.people, settings, job.calibration) for settings in job.settings]
    sys.stdout.buffer.write(_ANSWER.dump_json(found))


if __name__ == "__main__":
    main()
