"""The settings in the words of another server: each flag with its reason, where meanings differ, how to check. Pure.

Flags as in llama-server of 2026-09, Ollama of 2026-08 and vLLM 0.32.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from slotdeck.console.advice.capacity import UTILISATION

Server = Literal["ollama", "llama-server", "vllm"]
Form = Literal["systemd", "command"]

LLAMA_PORT, VLLM_PORT, OLLAMA_PORT = 8080, 8000, 11434
COLUMNS = 100


@dataclass(frozen=True)
class Chosen:
    """What is exported, in Slotdeck's own words."""

    slots: int
    context: int
    queue: int
    budget: int
    mode: str = "continuous"
    kv_dtype: str = "bf16"
    prefix_cache: bool = True
    model: str | None = None
    """A path or a name as the other server takes it."""
    utilisation: float = UTILISATION


@dataclass(frozen=True)
class Option:
    """One flag or variable. ``value`` is empty for a flag that takes none."""

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
    """What means something else there, or cannot be said."""
    apply: tuple[str, ...]
    """Shell commands, after the text was saved."""
    verify: tuple[str, ...]
    """Shell commands, each with what to look for after ``#``."""
    text: str
    """A drop-in file or a shell script; reasons, warnings and commands are comments in it."""


def export_settings(server: Server, chosen: Chosen, form: Form | None = None, unit: str | None = None) -> Export:
    """The settings for a server: a systemd drop-in for the unit, or a shell script.

    Ollama is set by variables, so a drop-in is its default; the others get a command. ``unit`` without ``.service``.
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
    warnings = [*warnings, "Nothing changes live there: applying it restarts the server and ends every stream."]
    verify = (*verify, f"slotdeck probe http://127.0.0.1:{port}  # two requests at once: batched or queued")
    export = Export(server, form, tuple(options), tuple(warnings), apply, verify, "")
    make: Callable[[Export, tuple[str, ...]], list[str]] = _drop_in if form == "systemd" else _script
    text = "\n".join([*_comments(export, file if form == "systemd" else None), *make(export, words)]) + "\n"
    return Export(server, form, export.options, export.warnings, apply, verify, text)


# ------------------------------------------------------------------ the servers

_Parts = tuple[list[Option], list[str], tuple[str, ...]]


def _ollama(chosen: Chosen) -> _Parts:
    slots, total = _slots(chosen), _slots(chosen) * chosen.context
    options = [
        Option("OLLAMA_NUM_PARALLEL", str(slots), "requests that run at the same time; its default is 1"),
        Option("OLLAMA_CONTEXT_LENGTH", str(chosen.context), "tokens of one request, prompt and answer"),
        Option("OLLAMA_MAX_QUEUE", str(chosen.queue), "requests that may wait; its default of 512 is a promise nobody "
               "keeps, more get 503"),
    ]  # fmt: skip
    warnings = [
        f"Ollama multiplies: {slots} x {chosen.context} = {total} tokens of cache are taken when a model is loaded.",
        "A prompt longer than the context is cut there without a word; Slotdeck refuses it.",
        "A num_ctx in a request or a Modelfile goes before OLLAMA_CONTEXT_LENGTH; some families of models run one "
        "request at a time whatever is set.",
        f"The prefill budget of {chosen.budget} has no counterpart.",
    ]
    if chosen.kv_dtype == "int8":
        options += [
            Option("OLLAMA_FLASH_ATTENTION", "1", "a cache of another type needs it"),
            Option("OLLAMA_KV_CACHE_TYPE", "q8_0", "an 8-bit cache: half the memory for a little quality"),
        ]
    elif chosen.kv_dtype == "fp32":
        warnings.append("Its cache is 16-bit at most; fp32 has no counterpart.")
    _mode(chosen, warnings, "OLLAMA_NUM_PARALLEL=1")
    return options, warnings, (
        "ollama ps  # after a first request: CONTEXT as above, PROCESSOR 100% GPU or the cache took too much",
    )  # fmt: skip


def _llama_server(chosen: Chosen) -> _Parts:
    slots, total = _slots(chosen), _slots(chosen) * chosen.context
    kind = {"int8": "q8_0", "fp32": "f32", "bf16": "bf16", "fp16": "f16"}[chosen.kv_dtype]
    options = [
        Option("-m", chosen.model or "MODEL.gguf", "the model"),
        Option("-np", str(slots), "slots: requests that run at the same time"),
        Option("-c", str(total), f"all slots together: {slots} x {chosen.context}, since -c is divided over -np"),
        Option("-b", str(chosen.budget + slots), f"tokens of one step: {chosen.budget} of prompts + one for each slot"),
        Option("--cache-type-k", kind, "type of the cache for K"),
        Option("--cache-type-v", kind, "and for V"),
    ]
    if kind == "q8_0":
        options.append(Option("-fa", "on", "an 8-bit V needs flash attention"))
    if chosen.mode == "static":
        options.append(Option("--no-cont-batching", "", "whole batches, as in mode static"))
    else:
        options.append(Option("-cb", "", "continuous batching, its default: who ends frees its slot at once"))
    if not chosen.prefix_cache:
        options.append(Option("--no-cache-prompt", "", "prefixes are computed again, as here"))
    options += [
        Option("--port", str(LLAMA_PORT), "said, so that the checks find it"),
        Option("--metrics", "", "so that it can be watched; off by default"),
    ]
    warnings = [
        f"llama-server divides: -c {total} over -np {slots} leaves {chosen.context} tokens for each request.",
        f"It has no limit on waiting requests: the queue of {chosen.queue} needs a proxy in front of it.",
    ]
    if chosen.mode == "serial":
        _mode(chosen, warnings, "-np 1")
    return options, warnings, (
        f"curl -s http://127.0.0.1:{LLAMA_PORT}/slots  # as many slots as -np, each with n_ctx {chosen.context}",
    )  # fmt: skip


def _vllm(chosen: Chosen) -> _Parts:
    slots = _slots(chosen)
    options = [
        Option("--max-num-seqs", str(slots), "slots: requests that run at the same time"),
        Option("--max-model-len", str(chosen.context), "context: tokens of one request, prompt and answer"),
        Option("--max-num-batched-tokens", str(chosen.budget + slots), "tokens of one step: the budget of "
               f"{chosen.budget} + one for each slot, since running streams count there"),
        Option("--max-num-queued-reqs", str(slots + chosen.queue), f"{slots} that run + {chosen.queue} that wait, "
               "since both count there; more get 503, by default nobody does"),
        Option("--gpu-memory-utilization", f"{chosen.utilisation:g}", "share of the GPU memory for weights and "
               "cache; the pool gets what the weights leave"),
    ]  # fmt: skip
    if chosen.kv_dtype == "int8":
        options.append(Option("--kv-cache-dtype", "int8_per_token_head", "8-bit with a scale for each token and head, "
                              "as here"))  # fmt: skip
    if not chosen.prefix_cache:
        options.append(Option("--no-enable-prefix-caching", "", "prefixes are computed again, as here"))
    warnings = [
        "The pool is not set in tokens: it is what the weights leave of the utilisation.",
        "A version that does not know --max-num-queued-reqs (0.32 does) queues without a limit.",
    ]
    if chosen.kv_dtype == "fp32":
        warnings.append("A cache of fp32 has no counterpart; it gets the type of the weights.")
    _mode(chosen, warnings, "--max-num-seqs 1")
    return options, warnings, (
        f"curl -s http://127.0.0.1:{VLLM_PORT}/metrics | grep vllm:cache_config_info  # kv_cache_size_tokens and "
        f"kv_cache_max_concurrency: at least {slots}",
    )  # fmt: skip


def _slots(chosen: Chosen) -> int:
    """Those in effect: serial runs one request at a time whatever is set."""
    return 1 if chosen.mode == "serial" else chosen.slots


def _mode(chosen: Chosen, warnings: list[str], one: str) -> None:
    if chosen.mode == "serial":
        warnings.append(f"Mode serial becomes {one}: the {chosen.slots} slots set here are not in effect.")
    elif chosen.mode == "static":
        warnings.append("Mode static has no counterpart: it batches continuously, which is better.")


# ------------------------------------------------------------------ the text


def _comments(export: Export, file: str | None) -> list[str]:
    lines = ["#!/bin/sh"] if file is None else _comment(file)
    lines += _comment(f"Settings for {export.server}, written by slotdeck export.")
    if export.server != "ollama":  # comments cannot stand between the words of a command
        for one in export.options:
            lines += _comment(f"{_words(one)}: {one.reason}", "#   ")
    for warning in export.warnings:
        lines += _comment(warning, "# ! ")
    for title, commands in (("Apply:", export.apply), ("Verify:", export.verify)):
        lines += ["#", *_comment(title)]
        for command in commands:
            lines += _comment(command, "#   ", wrap=False)  # one line each, to be copied
    return lines


def _comment(text: str, head: str = "# ", *, wrap: bool = True) -> list[str]:
    """A comment that cannot become anything else: no control characters, no backslash that joins the next line."""
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
    """One word of a unit file in quotes: ``%`` and ``$`` are not expanded, control characters cannot end a line."""
    text = "".join(character if character.isprintable() else "?" for character in text)
    for character, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        text = text.replace(character, written)
    return f'"{text}"'


def _unit_word(text: str) -> str:
    """One word of ``ExecStart=``, in quotes only where it needs them."""
    plain = text and all(character.isalnum() or character in "-_./:=," for character in text)
    return text if plain else _unit_quoted(text).replace("$", "$$")
