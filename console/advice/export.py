"""Translates settings for another server: each flag with its reason, where meanings differ, and how to check.

The flags are those of llama-server of 2026-09, Ollama of 2026-08 and vLLM 0.32.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from slotdeck.engine.settings import GPU_MEMORY_SHARE

Server = Literal["ollama", "llama-server", "vllm"]
Form = Literal["systemd", "command"]

LLAMA_PORT, VLLM_PORT, OLLAMA_PORT = 8080, 8000, 11434
COLUMNS = 100


@dataclass(frozen=True)
class ExportedSettings:
    """The settings to export, with Slotdeck's own meaning."""

    slots: int
    context: int
    queue: int
    budget: int
    mode: str = "continuous"
    kv_dtype: str = "bf16"
    prefix_cache: bool = True
    model: str | None = None
    """A path or a name in the form that the other server expects."""
    utilisation: float = GPU_MEMORY_SHARE


@dataclass(frozen=True)
class Option:
    """One flag or environment variable. ``value`` is empty for a flag without a value."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Export:
    """The settings for one server."""

    server: Server
    form: Form
    options: tuple[Option, ...]
    warnings: tuple[str, ...]
    """Settings that mean something else there, or have no counterpart."""
    apply: tuple[str, ...]
    """Shell commands to run after saving the text."""
    verify: tuple[str, ...]
    """Shell commands, each with what to look for after ``#``."""
    text: str
    """A systemd drop-in or a shell script, with reasons, warnings and commands as comments."""


def export_settings(
    server: Server, chosen: ExportedSettings, form: Form | None = None, unit: str | None = None
) -> Export:
    """Translate settings for a server: a systemd drop-in for ``unit``, or a shell script.

    ``unit`` is given without ``.service``; by default it is the name of the server. Ollama is configured with
    environment variables, so its default form is a drop-in; the default of the others is a script.
    """
    words: tuple[str, ...]
    if server == "ollama":
        options, warnings, verify = _ollama(chosen)
        words, port = ("ollama", "serve"), OLLAMA_PORT
    elif server == "llama-server":
        options, warnings, verify = _llama_server(chosen)
        words, port = ("llama-server",), LLAMA_PORT
    else:
        options, warnings, verify = _vllm(chosen)
        words, port = ("vllm", "serve", chosen.model or "MODEL"), VLLM_PORT
    form = form or ("systemd" if server == "ollama" else "command")
    unit = unit or server
    file = f"/etc/systemd/system/{unit}.service.d/slotdeck.conf"
    if form == "systemd":
        apply: tuple[str, ...] = (
            f"sudo mkdir -p {shlex.quote(file.rpartition('/')[0])}",
            f"slotdeck export {server} … | sudo tee {shlex.quote(file)}",
            f"sudo systemctl daemon-reload && sudo systemctl restart {shlex.quote(unit)}",
        )
        verify = (f"systemctl show {shlex.quote(unit)} -p Environment -p ExecStart  # these settings", *verify)
    else:
        apply = (f"sh slotdeck-{server}.sh  # after saving this as slotdeck-{server}.sh",)
    warnings = [
        *warnings,
        "That server changes nothing live: applying these settings restarts it and ends every stream.",
    ]
    verify = (*verify, f"slotdeck probe http://127.0.0.1:{port}  # shows whether two requests run together or queue")
    export = Export(server, form, tuple(options), tuple(warnings), apply, verify, "")
    make: Callable[[Export, tuple[str, ...]], list[str]] = _drop_in if form == "systemd" else _script
    text = "\n".join([*_comments(export, file if form == "systemd" else None), *make(export, words)]) + "\n"
    return Export(server, form, export.options, export.warnings, apply, verify, text)


# ------------------------------------------------------------------ the servers

_Parts = tuple[list[Option], list[str], tuple[str, ...]]


def _ollama(chosen: ExportedSettings) -> _Parts:
    slots, total = _slots(chosen), _slots(chosen) * chosen.context
    options = [
        Option("OLLAMA_NUM_PARALLEL", str(slots), "requests that run at the same time; the default is 1"),
        Option("OLLAMA_CONTEXT_LENGTH", str(chosen.context), "tokens of one request, prompt and answer"),
        Option("OLLAMA_MAX_QUEUE", str(chosen.queue), "requests that may wait; further ones get 503. The default of "
               "512 is far more than can be served in time"),
    ]  # fmt: skip
    warnings = [
        f"Ollama multiplies: it allocates {slots} x {chosen.context} = {total} tokens of cache when it loads a model.",
        "Ollama silently cuts a prompt that is longer than the context; Slotdeck refuses it.",
        "num_ctx in a request or a Modelfile overrides OLLAMA_CONTEXT_LENGTH. Some model families run one request at a "
        "time whatever is set.",
        f"The prefill budget of {chosen.budget} has no counterpart.",
    ]
    if chosen.kv_dtype == "int8":
        options += [
            Option("OLLAMA_FLASH_ATTENTION", "1", "required for a cache of another type"),
            Option("OLLAMA_KV_CACHE_TYPE", "q8_0", "an 8-bit cache: half the memory, a little less quality"),
        ]
    elif chosen.kv_dtype == "fp32":
        warnings.append("The cache is 16-bit at most; fp32 has no counterpart.")
    _mode(chosen, warnings, "OLLAMA_NUM_PARALLEL=1")
    return options, warnings, (
        "ollama ps  # after a first request: CONTEXT as above; less than 100% GPU means that the cache is too large",
    )  # fmt: skip


def _llama_server(chosen: ExportedSettings) -> _Parts:
    slots, total = _slots(chosen), _slots(chosen) * chosen.context
    kind = {"int8": "q8_0", "fp32": "f32", "bf16": "bf16", "fp16": "f16"}[chosen.kv_dtype]
    options = [
        Option("-m", chosen.model or "MODEL.gguf", "the model"),
        Option("-np", str(slots), "slots: requests that run at the same time"),
        Option(
            "-c", str(total), f"context of all slots together: {slots} x {chosen.context}, because -c is divided by -np"
        ),
        Option(
            "-b", str(chosen.budget + slots), f"tokens of one step: {chosen.budget} of prompts, and one for each slot"
        ),
        Option("--cache-type-k", kind, "type of the cache, for K"),
        Option("--cache-type-v", kind, "type of the cache, for V"),
    ]
    if kind == "q8_0":
        options.append(Option("-fa", "on", "flash attention, required for an 8-bit V"))
    if chosen.mode == "static":
        options.append(Option("--no-cont-batching", "", "whole batches, like mode static"))
    else:
        options.append(
            Option("-cb", "", "continuous batching (the default): a finished request frees its slot at once")
        )
    if not chosen.prefix_cache:
        options.append(Option("--no-cache-prompt", "", "no prefix cache, as here"))
    options += [
        Option("--port", str(LLAMA_PORT), "the port that the commands below expect"),
        Option("--metrics", "", "metrics, which are off by default"),
    ]
    warnings = [
        f"llama-server divides: -c {total} by -np {slots} gives {chosen.context} tokens for each request.",
        f"llama-server does not limit waiting requests: a queue of {chosen.queue} needs a proxy in front of it.",
    ]
    if chosen.mode == "serial":
        _mode(chosen, warnings, "-np 1")
    return options, warnings, (
        f"curl -s http://127.0.0.1:{LLAMA_PORT}/slots  # expect as many slots as -np, each with n_ctx {chosen.context}",
    )  # fmt: skip


def _vllm(chosen: ExportedSettings) -> _Parts:
    slots = _slots(chosen)
    options = [
        Option("--max-num-seqs", str(slots), "slots: requests that run at the same time"),
        Option("--max-model-len", str(chosen.context), "context: tokens of one request, prompt and answer"),
        Option("--max-num-batched-tokens", str(chosen.budget + slots), "tokens of one step: the budget of "
               f"{chosen.budget}, and one for each slot, because vLLM counts running streams too"),
        Option("--max-num-queued-reqs", str(slots + chosen.queue), f"{slots} running + {chosen.queue} waiting, "
               "because vLLM counts both; further ones get 503, which is off by default"),
        Option("--gpu-memory-utilization", f"{chosen.utilisation:g}", "share of the GPU memory for weights and "
               "cache; the pool gets what the weights leave"),
    ]  # fmt: skip
    if chosen.kv_dtype == "int8":
        options.append(Option("--kv-cache-dtype", "int8_per_token_head", "8-bit with a scale for each token and head, "
                              "as here"))  # fmt: skip
    if not chosen.prefix_cache:
        options.append(Option("--no-enable-prefix-caching", "", "no prefix cache, as here"))
    warnings = [
        "The size of the pool is not set in tokens: it is what the weights leave of the GPU memory share.",
        "A version without --max-num-queued-reqs (0.32 has it) does not limit the queue.",
    ]
    if chosen.kv_dtype == "fp32":
        warnings.append("An fp32 cache has no counterpart; the cache gets the type of the weights.")
    _mode(chosen, warnings, "--max-num-seqs 1")
    return options, warnings, (
        f"curl -s http://127.0.0.1:{VLLM_PORT}/metrics | grep vllm:cache_config_info  # kv_cache_size_tokens; "
        f"kv_cache_max_concurrency should be at least {slots}",
    )  # fmt: skip


def _slots(chosen: ExportedSettings) -> int:
    """The slots in effect: mode serial runs one request at a time, whatever is set."""
    return 1 if chosen.mode == "serial" else chosen.slots


def _mode(chosen: ExportedSettings, warnings: list[str], one: str) -> None:
    if chosen.mode == "serial":
        warnings.append(f"Mode serial becomes {one}: the {chosen.slots} slots that are set here have no effect in it.")
    elif chosen.mode == "static":
        warnings.append("Mode static has no counterpart: the server batches continuously, which is better.")


# ------------------------------------------------------------------ the text


def _comments(export: Export, file: str | None) -> list[str]:
    lines = ["#!/bin/sh"] if file is None else _comment(file)
    lines += _comment(f"Settings for {export.server}, written by slotdeck export.")
    if export.server != "ollama":  # A command cannot contain comments, so they come first.
        for one in export.options:
            lines += _comment(f"{_words(one)}: {one.reason}", "#   ")
    for warning in export.warnings:
        lines += _comment(warning, "# ! ")
    for title, commands in (("Apply:", export.apply), ("Verify:", export.verify)):
        lines += ["#", *_comment(title)]
        for command in commands:
            lines += _comment(command, "#   ", wrap=False)  # One line each, so that it can be copied.
    return lines


def _comment(text: str, head: str = "# ", *, wrap: bool = True) -> list[str]:
    """A comment. Control characters and a trailing backslash are removed, so that it cannot become anything else."""
    text = "".join(character if character.isprintable() else "?" for character in text).rstrip("\\ ")
    if not wrap:
        return [head + text]
    more = "#".ljust(len(head))
    return textwrap.wrap(text, COLUMNS, initial_indent=head, subsequent_indent=more, break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip


def _drop_in(export: Export, words: tuple[str, ...]) -> list[str]:
    lines = ["[Service]"]
    if export.server == "ollama":
        for one in export.options:
            lines += [*_comment(one.reason), f"Environment={_unit_quoted(f'{one.name}={one.value}')}"]
        return lines
    command = " ".join(map(_unit_word, ("/usr/bin/env", *words, *_arguments(export))))
    return [*lines, "ExecStart=", f"ExecStart={command}"]


def _script(export: Export, words: tuple[str, ...]) -> list[str]:
    if export.server == "ollama":
        lines = []
        for one in export.options:
            lines += [*_comment(one.reason), f"export {one.name}={shlex.quote(one.value)}"]
        return [*lines, f"exec {shlex.join(words)}"]
    rows = [shlex.join(words), *(shlex.join(word for word in (one.name, one.value) if word) for one in export.options)]
    return [f"exec {rows[0]} \\", *(f"  {row} \\" for row in rows[1:-1]), f"  {rows[-1]}"]


def _arguments(export: Export) -> list[str]:
    return [word for one in export.options for word in (one.name, one.value) if word]


def _words(option: Option) -> str:
    return f"{option.name} {option.value}".strip()


def _unit_quoted(text: str) -> str:
    """One quoted word of a unit file. ``%`` is escaped, and control characters cannot end a line."""
    text = "".join(character if character.isprintable() else "?" for character in text)
    for character, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        text = text.replace(character, written)
    return f'"{text}"'


def _unit_word(text: str) -> str:
    """One word of ``ExecStart=``, quoted only if necessary; ``$`` is escaped."""
    plain = text and all(character.isalnum() or character in "-_./:=," for character in text)
    return text if plain else _unit_quoted(text).replace("$", "$$")
