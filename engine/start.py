"""Builds a running engine from the settings: model, KV pool, loop and tokenizer. Chooses the settings left open."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Timer

from slotdeck.engine import __version__
from slotdeck.engine.core.block_pool import blocks_for
from slotdeck.engine.core.kv_memory import tokens_that_fit
from slotdeck.engine.loop.engine_loop import EngineLoop
from slotdeck.engine.model.errors import human_bytes
from slotdeck.engine.model.hardware import available_memory, total_memory
from slotdeck.engine.model.load import LoadedModel, find_model, load, memory_beside
from slotdeck.engine.model.runner import Runner, kv_type
from slotdeck.engine.server.context import ServedModel
from slotdeck.engine.server.keys import load_api_keys
from slotdeck.engine.server.output_router import OutputRouter
from slotdeck.engine.settings import (
    BLOCK_SIZE,
    GPU_MEMORY_SHARE,
    MAX_KV_TOKENS,
    SETTINGS,
    LiveFields,
    LiveSettings,
    SettingsError,
    StartSettings,
)
from slotdeck.engine.telemetry.frame import EngineInfo
from slotdeck.engine.text.tokenizer import TextModel
from slotdeck.engine.units import parse_bytes

log = logging.getLogger("slotdeck.engine")

DEFAULT_CONTEXT = 2048
DEFAULT_BUDGET_GPU = 512
WEDGED_GRACE = 2.0
"""Seconds from telling clients that a step does not return to the end of the process."""
WEDGED_EXIT = 70


@dataclass(frozen=True)
class Engine:
    """What ``slotdeck.engine.server.serve.serve`` needs."""

    loop: EngineLoop
    output_router: OutputRouter
    text: TextModel
    model: ServedModel


def start_engine(settings: StartSettings, url: str, say: Callable[[str], None]) -> Engine:
    """Load the model, allocate the KV pool and start the loop. Calls ``say`` with a line before and after long work.

    Raises SettingsError and ModelError, which name the setting to change. Settings that cannot work are refused before
    the weights are read.
    """
    say(f"loading {settings.model}")
    found = find_model(settings.model, weights=settings.weights, device=settings.device)
    config, device = found.config, found.device
    per_token = config.token_bytes(kv_type(settings.kv_dtype, found.kv_dtype))
    expected = PoolMemory(memory_beside(found), total_memory(device), per_token)
    choose_limits(settings, config.max_positions, device.type, expected)
    model = load(found)
    say(
        f"loaded {model.id} in {model.load_seconds:.1f} s, weights {model.weights} on {model.device}"
        f" ({model.kernels} kernels)"
    )
    memory = PoolMemory(available_memory(device), total_memory(device), per_token)
    live, num_blocks = choose_limits(settings, config.max_positions, device.type, memory)
    runner = Runner(model, num_blocks, settings.kv_dtype, settings.threads)
    output_router = OutputRouter()
    loop = EngineLoop(
        runner=runner,
        settings=live,
        num_blocks=num_blocks,
        deliver=output_router.deliver,
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
    return Engine(loop, output_router, text, served)


@dataclass(frozen=True)
class PoolMemory:
    """The memory for the KV pool, in bytes: estimated before the weights are loaded, measured afterwards."""

    free: int
    """Free memory of the device."""
    total: int
    """All memory of the device."""
    per_token: int
    """Bytes of one token in the pool: K, V and scales."""

    def tokens(self, size: float | str) -> int:
        """Tokens in a pool of ``size``: an int is tokens, a float a share of the free memory, a text bytes."""
        if isinstance(size, int):
            return size
        wanted = int(self.free * size) if isinstance(size, float) else parse_bytes(size) or 0
        return tokens_that_fit(wanted, self.per_token)

    @property
    def max_tokens(self) -> int:
        """Tokens in the largest pool that fits."""
        return tokens_that_fit(self.free, self.per_token)

    @property
    def gpu_tokens(self) -> int:
        """Tokens in the pool that fills the device up to GPU_MEMORY_SHARE of its memory."""
        return tokens_that_fit(int(self.free - (1 - GPU_MEMORY_SHARE) * self.total), self.per_token)


def choose_limits(
    settings: StartSettings, trained_context: int, device: str, memory: PoolMemory
) -> tuple[LiveSettings, int]:
    """The initial live settings and the number of blocks in the pool. ``device`` is "cpu" or "cuda".

    Raises SettingsError if the context is larger than the model was trained for or than the pool, or if the pool does
    not fit into memory. The message has the largest value that fits and the flag to set.
    """
    context = settings.context or min(DEFAULT_CONTEXT, trained_context)
    if context > trained_context:
        raise SettingsError(
            f"{SETTINGS['context'].flag} {context} is more than this model was trained for: at most {trained_context}"
        )
    slots = settings.slots
    if settings.kv_tokens is not None:
        pool_tokens = memory.tokens(settings.kv_tokens)
        chosen = f"{SETTINGS['kv_tokens'].flag} {settings.kv_tokens}"
    elif device == "cuda":
        pool_tokens, chosen = (
            memory.gpu_tokens,
            f"the KV pool that {GPU_MEMORY_SHARE} of the GPU's memory leaves room for",
        )
    else:
        pool_tokens, chosen = slots * context, "the KV pool"
    if not isinstance(settings.kv_tokens, int):
        chosen += f" ({pool_tokens} tokens)"
    if pool_tokens < context:
        raise SettingsError(
            f"{chosen} cannot hold one request of {context} tokens: "
            f"raise {SETTINGS['kv_tokens'].flag} to at least {context}, or lower {SETTINGS['context'].flag}"
        )
    num_blocks = blocks_for(min(pool_tokens, MAX_KV_TOKENS))
    if num_blocks * BLOCK_SIZE > memory.max_tokens:
        raise SettingsError(f"{chosen} {_does_not_fit(settings, slots, context, pool_tokens, memory)}")
    given = {name: getattr(settings, name) for name in LiveFields.model_fields}
    chosen_here = {
        "context": context,
        "budget": settings.budget or (DEFAULT_BUDGET_GPU if device == "cuda" else LiveSettings().budget),
        "kv_tokens": num_blocks * BLOCK_SIZE,
    }
    live = LiveSettings.model_validate(given | chosen_here)
    return live, num_blocks


def _does_not_fit(settings: StartSettings, slots: int, context: int, pool_tokens: int, memory: PoolMemory) -> str:
    """How much memory the pool needs, how much there is, and the largest settings that fit."""
    most, least = memory.max_tokens, int(SETTINGS["context"].minimum or 0)
    text = (
        f"takes {human_bytes(pool_tokens * memory.per_token)} "
        f"({human_bytes(memory.per_token)} per token), but only {human_bytes(max(0, memory.free))} are left beside the "
        "weights: "
    )
    context_flag, slots_flag, pool_flag = (SETTINGS[name].flag for name in ("context", "slots", "kv_tokens"))
    if most < least:
        return text + "use a smaller model, or free some memory"
    if settings.kv_tokens is not None:
        lower = f" and {context_flag}" if context > most else ""
        return f"{text}set {pool_flag}{lower} to at most {most}"
    each = most // slots // BLOCK_SIZE * BLOCK_SIZE
    ways = []
    if each >= least:
        ways.append(f"{context_flag} {each} (the largest that fits for {slots} slots)")
    if most >= context:
        ways.append(f"{slots_flag} {most // context}")
    if not ways:
        ways.append(f"{slots_flag} 1 {context_flag} {most} (the largest that fits)")
    return f"{text}set {' or '.join(ways)}"


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
    """End the process soon, since a step that does not return cannot be stopped. Clients are told before that."""
    log.critical("ending the process: %s", reason)
    Timer(WEDGED_GRACE, os._exit, args=(WEDGED_EXIT,)).start()
