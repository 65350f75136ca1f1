"""`python -m slotdeck.console.load --users 5 --socket PATH`: what the console's key L starts.

It prints nothing and ends by a signal, or when the process named by ``--parent`` has ended. Exit code 1: the server
cannot be reached or refuses the load; stderr says why.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import get_args

from slotdeck.console.load import Kind
from slotdeck.console.load.client import RequestFailedError
from slotdeck.console.load.traffic import Target, run_traffic
from slotdeck.engine.configuration import load_settings
from slotdeck.engine.paths import default_socket


def main(arguments: list[str] | None = None) -> str | None:
    """Run the load; a sentence for stderr if it failed, else ``None``."""
    parser = argparse.ArgumentParser(prog="python -m slotdeck.console.load")
    parser.add_argument("--users", type=int, default=5)
    parser.add_argument("--kind", choices=get_args(Kind), default="chat")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--socket", type=Path)
    parser.add_argument("--parent", type=int, help="pid of the parent process; the load ends with it")
    given = parser.parse_args(arguments)
    target = Target(
        url=None, api_key=None, model=None, socket=given.socket or load_settings({}).socket or default_socket()
    )
    try:
        tally = asyncio.run(
            run_traffic(
                target,
                users=given.users,
                kind=given.kind,
                seed=given.seed,
                duration=None,
                on_tick=lambda _tally: None,
                parent=given.parent,
            )
        )
    except RequestFailedError as error:
        return f"slotdeck: {error}"
    return "slotdeck: the server cannot be reached; the load ended" if tally.gone else None


if __name__ == "__main__":
    sys.exit(main())
