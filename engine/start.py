"""Builds a running engine from the settings: model, pool, loop, texts. What nobody set is chosen here, once."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Timer

from engine import __version__
from engine.core.block_pool import blocks_for
from engine.loop import EngineLoop
from engine.model.load import LoadedModel, load_model
from engine.model.runner import Runner
from engine.server.bridge import Bridge
from engine.server.context import ServedModel
from engine.settings import BLOCK_SIZE, SETTINGS, LiveSettings, SettingsError, StartSettings
from engine.telemetry.frame import EngineInfo
from engine.text.tokenizer import TextModel

log = logging.getLogger("slotdeck.engine")

DEFAULT_CONTEXT = 2048
DEFAULT_BUDGET_GPU = 512
WEDGED_GRACE = 2.0
"""Seconds between telling clients of a wedged step and ending the process for its supervisor."""
WEDGED_EXIT = 70


@dataclass(frozen=True)
class Engine:
    """Everything ``engine.server.serve.serve`` needs."""

    loop: EngineLoop
    bridge: Bridge
    text: TextModel
    model: ServedModel


def start_engine(settings: StartSettings, url: str, say: Callable[[str], None]) -> Engine:
    """Load the model, take the pool, start the loop. ``say`` gets one line for each thing that takes time.

    Raises SettingsError and ModelError, naming the setting to turn.
    """
    say(f"loading {settings.model}")
    model = load_model(settings.model, weights=settings.weights, device=settings.device)
    say(f"loaded {model.id} in {model.load_seconds:.1f} s, weights {model.weights} on {model.device}")
    live, num_blocks = choose_limits(settings, model.config.max_positions, model.device.type)
    runner = Runner(model, num_blocks, settings.kv_dtype, settings.threads)
    bridge = Bridge()
    loop = EngineLoop(
        runner=runner,
        settings=live,
        num_blocks=num_blocks,
        deliver=bridge.deliver,
        info=_describe(settings, model, runner, url),
        bytes_per_token=runner.kv_bytes // (num_blocks * BLOCK_SIZE),
        step_timeout=settings.step_timeout,
        on_wedged=_exit_soon,
    )
    text = TextModel(model.tokenizer_folder)
    if not text.has_chat_template:
        say("this model has no chat template: /v1/chat/completions will answer 400")
    loop.start()
    served = ServedModel(model.id, int(time.time()), model.config.stop_token_ids, model.config.vocab_size)
    return Engine(loop, bridge, text, served)


def choose_limits(settings: StartSettings, trained_context: int, device: str) -> tuple[LiveSettings, int]:
    """The live settings to start with and the blocks of the pool.

    Raises SettingsError when the context exceeds what the model was trained for or what the pool can hold.
    """
    context = settings.context or min(DEFAULT_CONTEXT, trained_context)
    if context > trained_context:
        raise SettingsError(
            f"{SETTINGS['context'].flag} {context} is more than this model was trained for: at most {trained_context}"
        )
    slots = settings.slots or LiveSettings().slots
    pool_tokens = settings.kv_tokens or slots * context
    if pool_tokens < context:
        raise SettingsError(
            f"{SETTINGS['kv_tokens'].flag} {pool_tokens} cannot hold one request of {context} tokens: "
            f"raise it to at least {context}, or lower {SETTINGS['context'].flag}"
        )
    num_blocks = blocks_for(pool_tokens)
    live = LiveSettings(
        slots=slots,
        context=context,
        queue=LiveSettings().queue if settings.queue is None else settings.queue,
        budget=settings.budget or (DEFAULT_BUDGET_GPU if device == "cuda" else LiveSettings().budget),
        kv_tokens=num_blocks * BLOCK_SIZE,
        mode=settings.mode,
        preemption=settings.preemption,
        swap_space=settings.swap_space,
        prefix_cache=settings.prefix_cache,
        prefix_sharing=settings.prefix_sharing,
        itl_target=settings.itl_target,
    )
    return live, num_blocks


def _describe(settings: StartSettings, model: LoadedModel, runner: Runner, url: str) -> EngineInfo:
    return EngineInfo(
        version=__version__,
        pid=os.getpid(),
        model=model.id,
        weights=model.weights,
        kv_dtype=runner.kv_dtype,
        device=str(model.device),
        threads=runner.threads,
        url=url,
        trained_context=model.config.max_positions,
        load_seconds=model.load_seconds,
        weight_bytes=model.weight_bytes,
        notes=model.notes,
    )


def _exit_soon(reason: str) -> None:
    """A wedged step cannot be ended from outside: after the clients were told, the process ends."""
    log.critical("ending the process: %s", reason)
    Timer(WEDGED_GRACE, os._exit, args=(WEDGED_EXIT,)).start()
