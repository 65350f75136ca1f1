"""The engine process with one fault: once FILE exists, a step never returns.

``wedging_engine.py serve FILE`` runs like ``python -m slotdeck.engine serve``.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import slotdeck.engine.start
from slotdeck.engine.__main__ import main
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.model.runner import Runner

WEDGE = Path(sys.argv.pop())


class WedgingRunner(Runner):
    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        if WEDGE.exists():
            threading.Event().wait()
        return super().run(scheduler_output)


if __name__ == "__main__":
    slotdeck.engine.start.Runner = WedgingRunner  # type: ignore[misc]
    sys.exit(main())
