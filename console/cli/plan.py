"""`slotdeck plan`: how many people fit, what to set and why. Numbers come together in ``plan_inputs``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from console.load.command import SocketOption

KvDtype = Literal["fp32", "bf16", "fp16", "int8"]
MODEL, MACHINE, PEOPLE = "Which model (default: the one that runs)", "Which machine (default: this one)", "Which people"


def _option(flag: str, help_text: str, metavar: str, panel: str) -> typer.models.OptionInfo:
    """A flag that says nothing unless it is given; numbers are checked where they are used."""
    option: typer.models.OptionInfo = typer.Option(
        flag, help=help_text, metavar=metavar, show_default=False, rich_help_panel=panel
    )
    return option


def plan(
    context: typer.Context,
    *,
    model_config: Annotated[
        Path | None, _option("--model-config", "a config.json, or the folder it is in", "FILE", MODEL)
    ] = None,
    model: Annotated[str | None, _option("--model", "a model on disk: a folder or a .gguf file", "PATH", MODEL)] = None,
    layers: Annotated[int | None, _option("--layers", "layers that keep K and V", "N", MODEL)] = None,
    kv_heads: Annotated[int | None, _option("--kv-heads", "key-value heads", "N", MODEL)] = None,
    head_dim: Annotated[int | None, _option("--head-dim", "values of one head", "N", MODEL)] = None,
    weights_size: Annotated[
        str | None, _option("--weights-size", "memory of the weights, for example 16GB", "SIZE", MODEL)
    ] = None,
    weights: Annotated[
        Literal["fp32", "bf16", "fp16", "int8"] | None,
        _option(
            "--weights", "type of the weights; default: as here, bf16 with --gpu and --model-config", "TYPE", MODEL
        ),
    ] = None,
    kv_dtype: Annotated[
        KvDtype | None,
        _option("--kv-dtype", "type of the cache: fp32, bf16, fp16, int8; default: as here, else bf16", "TYPE", MODEL),
    ] = None,
    gpu: Annotated[str | None, _option("--gpu", "a GPU with this memory, for example 24GiB", "SIZE", MACHINE)] = None,
    utilisation: Annotated[
        float | None, _option("--utilisation", "part of the GPU's memory in use, default 0.92", "SHARE", MACHINE)
    ] = None,
    memory: Annotated[
        str | None, _option("--memory", "no GPU, this much free RAM, for example 16GiB", "SIZE", MACHINE)
    ] = None,
    prefill_speed: Annotated[
        float | None, _option("--prefill-speed", "measured, one stream alone: prompt tokens/s", "TOK/S", MACHINE)
    ] = None,
    decode_speed: Annotated[
        float | None, _option("--decode-speed", "measured, one stream alone: tokens/s written", "TOK/S", MACHINE)
    ] = None,
    users: Annotated[int | None, _option("--users", "people, or agents; default 5", "N", PEOPLE)] = None,
    turn_seconds: Annotated[
        float | None,
        _option("--turn-seconds", "from one turn to the next, default 90; 0: they never pause", "SECONDS", PEOPLE),
    ] = None,
    generate_seconds: Annotated[
        float | None,
        _option("--generate-seconds", "of work for one turn; default: from the speeds, else 12", "SECONDS", PEOPLE),
    ] = None,
    prompt: Annotated[
        int | None, _option("--prompt", "tokens of a prompt, earlier turns included", "TOKENS", PEOPLE)
    ] = None,
    answer: Annotated[int | None, _option("--answer", "tokens of an answer", "TOKENS", PEOPLE)] = None,
    context_tokens: Annotated[
        int | None, _option("--context", "tokens of one conversation; default: what they need", "TOKENS", PEOPLE)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, nothing rounded")] = False,
    socket: SocketOption = None,
) -> None:
    """How many people fit, what to set, and why: for this machine, or for one you do not own yet.

    KV bytes per token = 2 x layers x kv heads x head dim x bytes per value. In flight = users x seconds of work for a
    turn / seconds from one turn to the next.
    """
    from console.cli.admin import AdminClient
    from console.cli.exits import USAGE, fail
    from console.cli.flags import check_settings, merge_flags
    from console.cli.plan_inputs import Asked, question_from
    from console.cli.plan_report import plan_json, plan_text
    from engine.advice.capacity import CapacityError
    from engine.advice.planner import make_plan
    from engine.paths import default_socket

    explicit = merge_flags(context, {} if socket is None else {"socket": socket}, ("socket",))
    settings = check_settings(explicit)
    asked = Asked(
        model_config=model_config,
        model=model,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        weights_size=weights_size,
        weights=weights,
        gpu=gpu,
        memory=memory,
        utilisation=utilisation,
        users=users,
        turn_seconds=turn_seconds,
        generate_seconds=generate_seconds,
        prompt=prompt,
        answer=answer,
        context=context_tokens,
        kv_dtype=kv_dtype,
        prefill_speed=prefill_speed,
        decode_speed=decode_speed,
    )
    question = question_from(asked, AdminClient(settings.socket or default_socket()), settings.model)
    try:
        made = make_plan(question)
    except CapacityError as error:
        fail(str(error), USAGE)
    print(json.dumps(plan_json(made), indent=2, ensure_ascii=False) if as_json else "\n".join(plan_text(made)))
