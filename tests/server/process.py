"""A server as a process of its own, for tests that send signals: ``process.py TOKENIZER SOCKET`` prints its URL."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from slotdeck.engine.loop.engine_loop import EngineLoop
from slotdeck.engine.server.context import ServedModel
from slotdeck.engine.server.listeners import open_listeners
from slotdeck.engine.server.output_router import OutputRouter
from slotdeck.engine.server.serve import serve
from slotdeck.engine.settings import LiveSettings, StartSettings
from slotdeck.engine.text.tokenizer import TextModel
from tests.support.stub_server import MODEL, ScriptRunner


def main() -> int:
    text = TextModel(Path(sys.argv[1]))
    settings = StartSettings(port=0, socket=Path(sys.argv[2]))
    runner = ScriptRunner(text)
    runner.pace = 0.05
    output_router = OutputRouter()
    with open_listeners(settings) as listeners:
        engine = EngineLoop(runner, LiveSettings(context=8192), 4096, output_router.deliver)
        engine.start()
        code = asyncio.run(
            serve(
                engine,
                output_router,
                text=text,
                model=ServedModel(id=MODEL, created=0, stop_token_ids=frozenset(), vocabulary=420),
                settings=settings,
                listeners=listeners,
                on_ready=lambda url: print(url, flush=True),
            )
        )
        engine.stop()
    return code


if __name__ == "__main__":
    sys.exit(main())
