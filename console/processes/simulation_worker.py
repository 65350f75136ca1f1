"""Simulations beside the console.

``python -m slotdeck.console.processes.simulation_worker`` reads a job and writes what each setting gives.

A process of its own, so that a simulation never holds up a key or a frame; it runs with low priority.
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
"""Seconds after which a simulation is given up."""
_ANSWER = TypeAdapter(list[ServiceForecast])


class Job(BaseModel):
    """The same people under each of the settings."""

    model_config = ConfigDict(frozen=True)

    people: People
    settings: tuple[LiveSettings, ...]
    calibration: Calibration


async def simulate(job: Job) -> list[ServiceForecast] | str:
    """What each setting gives, or in one sentence why it is not known. Ends its process when it is cancelled."""
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
        return f"the simulation took more than {MAX_SECONDS:.0f} s and was given up"
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
