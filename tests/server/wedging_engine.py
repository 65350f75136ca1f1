"""The engine process with one fault put in: once the file named by the last argument exists, a step never returns.

Run like ``python -m engine``: ``wedging_engine.py serve FILE``.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import engine.start
from engine.__main__ import main
from engine.core.request import StepPlan, StepResult
from engine.model.runner import Runner

WEDGE = Path(sys.argv.pop())


class WedgingRunner(Runner):
    def run(self, plan: StepPlan) -> StepResult:
        if WEDGE.exists():
            threading.Event().wait()
        return super().run(plan)


if __name__ == "__main__":
    engine.start.Runner = WedgingRunner  # type: ignore[misc]
    sys.exit(main())
