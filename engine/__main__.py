"""``python -m slotdeck.engine``: the engine process. ``serve`` runs it, ``model`` fetches and describes models,
``measure`` measures steps for a calibration.

Exit codes: 0 ok; 1 failed; 2 a bad setting or argument, also a model or device that does not exist; 3 port or socket in
use; 70 a step did not return.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import sys

# Set before tokenizers and torch are imported: the server has its own threads for tokenizing and sends no telemetry.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from slotdeck.engine.configuration import load_settings
from slotdeck.engine.process_output import non_blocking_output
from slotdeck.engine.settings import SettingsError, StartSettings

OK, USAGE = 0, 2
log = logging.getLogger("slotdeck.engine")


def say(text: str) -> None:
    """Print a line for whoever watches the start. The console shows the newest one."""
    print(f"slotdeck: {text}", flush=True)


def serve(settings: StartSettings) -> int:
    """Serve until stopped. Returns the exit code."""
    gc.disable()  # nearly every object made before the engine serves stays until its end
    from slotdeck.engine.model.errors import ModelError
    from slotdeck.engine.server.listeners import ListenError, open_listeners

    try:
        with open_listeners(settings) as listeners:
            # These import torch, which takes seconds. The socket's lock is already held, so that whoever looks for an
            # engine meanwhile learns that this one is loading.
            from slotdeck.engine.server.serve import serve as serve_http
            from slotdeck.engine.start import start_engine
            from slotdeck.engine.telemetry.history.recorder import open_recorder

            engine = start_engine(settings, listeners.url, say)
            limits = engine.loop.limits

            def ready(url: str) -> None:
                # Never scan these objects again: that would stop every stream for a quarter of a second.
                gc.collect()
                gc.freeze()
                gc.enable()
                say(
                    f"serving {engine.model.id} on {url}: {limits.slots} slots, context {limits.context} per request, "
                    f"KV pool {engine.loop.pool_tokens} tokens, queue {limits.queue}, prefill budget {limits.budget}"
                )

            with non_blocking_output():
                try:
                    return asyncio.run(
                        serve_http(
                            engine.loop,
                            engine.output_router,
                            text=engine.text,
                            model=engine.model,
                            settings=settings,
                            listeners=listeners,
                            on_ready=ready,
                            recorder=open_recorder(engine.loop, settings),
                        )
                    )
                finally:
                    engine.loop.stop()
    except SettingsError as error:
        say(str(error))
        return USAGE
    except (ListenError, ModelError) as error:
        say(str(error))
        return error.exit_code
    finally:
        gc.enable()


def fetch_model() -> int:
    """Download the embedded model into the cache, unless it is there."""
    from slotdeck.engine.model.errors import ModelError
    from slotdeck.engine.model.fetch import embedded_model_path

    try:
        print(embedded_model_path())
    except ModelError as error:
        say(str(error))
        return error.exit_code
    return OK


def describe_model(source: str, as_json: bool) -> int:
    """Print what a model is and how much memory it needs, without loading it."""
    from slotdeck.engine.model.errors import ModelError, human_bytes
    from slotdeck.engine.model.load import find_model

    try:
        found = find_model(source)
    except ModelError as error:
        say(str(error))
        return error.exit_code
    config = found.config
    per_token = config.kv_bytes_per_token("bf16")
    if as_json:
        facts = {
            "id": config.id,
            "architecture": config.architecture,
            "layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "heads": config.num_heads,
            "kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "vocabulary": config.vocab_size,
            "trained_context": config.max_positions,
            "sliding_window": config.sliding_window,
            "parameters": config.num_parameters,
            "tied_embeddings": config.tie_embeddings,
            "weights": found.weights,
            "weight_bytes": found.weight_bytes,
            "kv_bytes_per_token_16_bit": per_token,
            "device": str(found.device),
            "notes": list(found.notes),
        }
        print(json.dumps(facts, indent=2))
        return OK
    print(f"{config.id}: {config.architecture}, {config.num_parameters:,} parameters, {config.num_layers} layers")
    print(f"  heads {config.num_heads}, KV heads {config.num_kv_heads}, head dim {config.head_dim}")
    window = f", sliding window {config.sliding_window}" if config.sliding_window else ""
    print(f"  trained context {config.max_positions} tokens{window}, vocabulary {config.vocab_size}")
    print(f"  weights {found.weights} on {found.device}: {human_bytes(found.weight_bytes)}")
    print(f"  KV {human_bytes(per_token)} per token in 16 bit, {human_bytes(2 * per_token)} in fp32")
    for note in found.notes:
        print(f"  {note}")
    return OK


def measure_steps(settings: StartSettings) -> int:
    """Measure steps and print their times as JSON. Progress goes to stderr."""
    from slotdeck.engine.measure import measure
    from slotdeck.engine.model.errors import ModelError

    try:
        print(json.dumps(measure(settings, lambda text: print(f"slotdeck: {text}", file=sys.stderr, flush=True))))
    except ModelError as error:
        print(f"slotdeck: {error}", file=sys.stderr)
        return error.exit_code
    return OK


def main() -> int:
    parser = argparse.ArgumentParser(prog="slotdeck", description=__doc__.split("\n\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve; settings come from SLOTDECK_* variables and config.toml")
    model = commands.add_parser("model", help="fetch or describe a model", prog="slotdeck model")
    actions = model.add_subparsers(dest="action", required=True)
    actions.add_parser("fetch", help="fetch the embedded model into the cache, if it is not there")
    info = actions.add_parser("info", help="what a model is and what memory it takes, without loading it")
    info.add_argument("source", nargs="?", default=None, help="smollm2, a folder, a .gguf file or a hub id")
    info.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    commands.add_parser("measure", help="measure steps of many kinds, without a server; prints JSON")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if arguments.command == "model" and arguments.action == "fetch":
        return fetch_model()
    try:
        settings = load_settings()
    except SettingsError as error:
        say(str(error))
        return USAGE
    if arguments.command == "model":
        return describe_model(arguments.source or settings.model, arguments.as_json)
    if arguments.command == "measure":
        return measure_steps(settings)
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
