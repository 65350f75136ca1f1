"""The engine process with a scripted model, which needs no weights and no torch.

``scripted_engine.py TOKENIZER [OPEN_FILES]`` runs like ``python -m slotdeck.engine serve``. OPEN_FILES is how many
files the process may open.
"""

from __future__ import annotations

import resource
import sys
import types
from collections.abc import Callable
from pathlib import Path

from slotdeck.engine.__main__ import main
from slotdeck.engine.loop.engine_loop import EngineLoop
from slotdeck.engine.server.context import ServedModel
from slotdeck.engine.server.output_router import OutputRouter
from slotdeck.engine.settings import LiveSettings, StartSettings
from slotdeck.engine.telemetry.frame import EngineInfo
from slotdeck.engine.text.tokenizer import TextModel
from tests.support.stub_server import MODEL, ScriptRunner

TOKENIZER = Path(sys.argv[1])


def start_engine(settings: StartSettings, url: str, say: Callable[[str], None]) -> types.SimpleNamespace:
    """Replaces the function of that name in ``slotdeck.engine.start``."""
    say(f"loading {MODEL}")
    text = TextModel(TOKENIZER)
    runner = ScriptRunner(text)
    runner.pace = 0.05
    router = OutputRouter()
    loop = EngineLoop(runner, LiveSettings(context=8192), 4096, router.deliver, EngineInfo(model=MODEL, url=url))
    loop.start()
    served = ServedModel(id=MODEL, created=0, stop_token_ids=frozenset(), vocabulary=420)
    return types.SimpleNamespace(loop=loop, output_router=router, text=text, model=served)


if __name__ == "__main__":
    for number in sys.argv[2:]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(number), int(number)))
    sys.modules["slotdeck.engine.start"] = types.SimpleNamespace(start_engine=start_engine)  # type: ignore[assignment]
    sys.argv[1:] = ["serve"]
    sys.exit(main())
