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
from engine.model.kv_store import kv_tokens_that_fit
from engine.model.load import LoadedModel, load_model
from engine.model.machine import available_memory, total_memory
from engine.model.runner import Runner, kv_type, token_bytes
from engine.server.bridge import Bridge
from engine.server.context import ServedModel
from engine.server.keys import load_api_keys
from engine.settings import BLOCK_SIZE, MOST_KV_TOKENS, SETTINGS, LiveSettings, SettingsError, StartSettings, bytes_in
from engine.telemetry.frame import EngineInfo
from engine.text.tokenizer import TextModel

log = logging.getLogger("slotdeck.engine")

DEFAULT_CONTEXT = 2048
DEFAULT_BUDGET_GPU = 512
GPU_SHARE = 0.92
"""Part of a GPU's memory, weights and other programs included, that the default pool fills up to."""
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
    say(
        f"loaded {model.id} in {model.load_seconds:.1f} s, weights {model.weights} on {model.device}"
        f" ({model.kernels} kernels)"
    )
    memory = PoolMemory(
        free=available_memory(model.device),
        total=total_memory(model.device),
        per_token=token_bytes(model.config, kv_type(settings.kv_dtype, model.kv_dtype)),
    )
    live, num_blocks = choose_limits(settings, model.config.max_positions, model.device.type, memory)
    runner = Runner(model, num_blocks, settings.kv_dtype, settings.threads)
    bridge = Bridge()
    loop = EngineLoop(
        runner=runner,
        settings=live,
        num_blocks=num_blocks,
        deliver=bridge.deliver,
        info=_describe(settings, model, runner, url),
        bytes_per_token=runner.kv_bytes // (num_blocks * BLOCK_SIZE),
        scale_bytes_per_token=runner.scale_bytes // (num_blocks * BLOCK_SIZE),
        step_timeout=settings.step_timeout,
        on_wedged=_exit_soon,
    )
    text = TextModel(model.tokenizer_folder)
    if not text.has_chat_template:
        say("this model has no chat template: /v1/chat/completions will answer 400")
    loop.start()
    served = ServedModel(model.id, int(time.time()), model.config.stop_token_ids, model.config.vocab_size)
    return Engine(loop, bridge, text, served)


@dataclass(frozen=True)
class PoolMemory:
    """What the pool can be taken from once the weights are loaded, in bytes."""

    free: int
    """Not used by anyone on the device."""
    total: int
    """All memory of the device."""
    per_token: int
    """One token in the pool: K, V and scales."""

    def tokens(self, size: float | str) -> int:
        """Tokens of a pool of that size: tokens as int, a share of what is free as float, bytes as text."""
        if isinstance(size, int):
            return size
        wanted = int(self.free * size) if isinstance(size, float) else bytes_in(size) or 0
        return min(kv_tokens_that_fit(wanted, self.per_token), MOST_KV_TOKENS)

    @property
    def gpu_tokens(self) -> int:
        """Tokens of the pool that GPU_SHARE of all memory leaves room for."""
        return min(kv_tokens_that_fit(int(self.free - (1 - GPU_SHARE) * self.total), self.per_token), MOST_KV_TOKENS)


def choose_limits(
    settings: StartSettings, trained_context: int, device: str, memory: PoolMemory
) -> tuple[LiveSettings, int]:
    """The live settings to start with and the blocks of the pool; ``device`` is "cpu" or "cuda".

    Raises SettingsError when the context exceeds what the model was trained for or what the pool can hold.
    """
    context = settings.context or min(DEFAULT_CONTEXT, trained_context)
    if context > trained_context:
        raise SettingsError(
            f"{SETTINGS['context'].flag} {context} is more than this model was trained for: at most {trained_context}"
        )
    slots = settings.slots or LiveSettings().slots
    if settings.kv_tokens is not None:
        pool_tokens, chosen = memory.tokens(settings.kv_tokens), f"{SETTINGS['kv_tokens'].flag} {settings.kv_tokens}"
    elif device == "cuda":
        pool_tokens, chosen = memory.gpu_tokens, f"the KV pool that {GPU_SHARE} of the GPU's memory leaves room for"
    else:
        pool_tokens, chosen = slots * context, "the KV pool"
    if pool_tokens < context:
        meaning = "" if isinstance(settings.kv_tokens, int) else f" ({pool_tokens} tokens)"
        raise SettingsError(
            f"{chosen}{meaning} cannot hold one request of {context} tokens: "
            f"raise {SETTINGS['kv_tokens'].flag} to at least {context}, or lower {SETTINGS['context'].flag}"
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
        kernels=model.kernels,
        url=url,
        trained_context=model.config.max_positions,
        load_seconds=model.load_seconds,
        weight_bytes=model.weight_bytes,
        layers=model.config.num_layers,
        kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        parameters=model.config.num_parameters,
        keys_required=bool(load_api_keys(settings)),
        notes=model.notes,
    )


def _exit_soon(reason: str) -> None:
    """A wedged step cannot be ended from outside: after the clients were told, the process ends."""
    log.critical("ending the process: %s", reason)
    Timer(WEDGED_GRACE, os._exit, args=(WEDGED_EXIT,)).start()
