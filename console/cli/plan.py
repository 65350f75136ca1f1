"""`slotdeck plan`: how many people fit, what to set and why. ``plan_inputs`` collects the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slotdeck.console.cli.moments import FromOption, ToOption
from slotdeck.console.cli.options import SocketOption

if TYPE_CHECKING:
    from slotdeck.console.cli.plan_search import Search

KvDtype = Literal["fp32", "bf16", "fp16", "int8"]
MODEL, MACHINE, PEOPLE = "The model (default: the one that runs)", "The machine (default: this one)", "The users"
SEARCH = "Search by simulation (--kind, or --from for recorded traffic; first run `slotdeck bench --calibrate`)"
MODES = ("continuous", "static", "serial")
MAX_USERS = 200
MIN_CONTEXT, MAX_CONTEXT = 256, 1 << 20
MAX_VERIFIED_SECONDS = 480.0
"""The engine's percentiles cover ten minutes, which must include the answers to the last requests."""


def _option(flag: str, help_text: str, metavar: str, panel: str) -> typer.models.OptionInfo:
    """A flag without a default. Numbers are checked where they are used."""
    option: typer.models.OptionInfo = typer.Option(
        flag, help=help_text, metavar=metavar, show_default=False, rich_help_panel=panel
    )
    return option


def plan(
    context: typer.Context,
    *,
    model_config: Annotated[
        Path | None, _option("--model-config", "a config.json, or its folder", "FILE", MODEL)
    ] = None,
    model: Annotated[str | None, _option("--model", "a model on disk: a folder or a .gguf file", "PATH", MODEL)] = None,
    layers: Annotated[int | None, _option("--layers", "layers that keep K and V", "N", MODEL)] = None,
    kv_heads: Annotated[int | None, _option("--kv-heads", "key-value heads", "N", MODEL)] = None,
    head_dim: Annotated[int | None, _option("--head-dim", "dimension of one head", "N", MODEL)] = None,
    weights_size: Annotated[
        str | None, _option("--weights-size", "memory of the weights, for example 16GB", "SIZE", MODEL)
    ] = None,
    weights: Annotated[
        Literal["fp32", "bf16", "fp16", "int8", "int4"] | None,
        _option(
            "--weights",
            "type of the weights; default: as on this machine; bf16 with --gpu or --model-config",
            "TYPE",
            MODEL,
        ),
    ] = None,
    kv_dtype: Annotated[
        KvDtype | None,
        _option(
            "--kv-dtype", "type of the KV cache: fp32, bf16, fp16, int8; default: as here, else bf16", "TYPE", MODEL
        ),
    ] = None,
    gpu: Annotated[str | None, _option("--gpu", "a GPU with this memory, for example 24GiB", "SIZE", MACHINE)] = None,
    utilisation: Annotated[
        float | None, _option("--utilisation", "part of the GPU memory to use, default 0.92", "SHARE", MACHINE)
    ] = None,
    memory: Annotated[
        str | None,
        _option("--memory", "a machine without GPU and this much free RAM, for example 16GiB", "SIZE", MACHINE),
    ] = None,
    prefill_speed: Annotated[
        float | None, _option("--prefill-speed", "measured prompt tokens/s of one stream alone", "TOK/S", MACHINE)
    ] = None,
    decode_speed: Annotated[
        float | None, _option("--decode-speed", "measured output tokens/s of one stream alone", "TOK/S", MACHINE)
    ] = None,
    users: Annotated[int | None, _option("--users", "number of people or agents, default 5", "N", PEOPLE)] = None,
    turn_seconds: Annotated[
        float | None,
        _option(
            "--turn-seconds", "time from one turn to the next, default 90; 0: users never pause", "SECONDS", PEOPLE
        ),
    ] = None,
    generate_seconds: Annotated[
        float | None,
        _option(
            "--generate-seconds", "work for one turn; default: computed from the speeds, else 12", "SECONDS", PEOPLE
        ),
    ] = None,
    prompt: Annotated[
        int | None, _option("--prompt", "tokens of a prompt, including earlier turns", "TOKENS", PEOPLE)
    ] = None,
    answer: Annotated[int | None, _option("--answer", "tokens of an answer", "TOKENS", PEOPLE)] = None,
    context_tokens: Annotated[
        int | None, _option("--context", "tokens of one conversation; default: what they need", "TOKENS", PEOPLE)
    ] = None,
    kind: Annotated[
        Literal["chat", "agent", "documents"] | None,
        _option("--kind", "search settings for simulated traffic: chat, agent or documents", "KIND", SEARCH),
    ] = None,
    begin: FromOption = None,
    end: ToOption = None,
    ttft_p95: Annotated[
        float | None, _option("--ttft-p95", "goal: limit for 19 of 20 first tokens, default 2", "SECONDS", SEARCH)
    ] = None,
    itl_p95: Annotated[
        float | None,
        _option("--itl-p95", "goal: limit for 19 of 20 gaps between tokens, default 0.15", "SECONDS", SEARCH),
    ] = None,
    modes: Annotated[
        str | None, _option("--modes", "modes of batching to try, default continuous", "LIST", SEARCH)
    ] = None,
    seconds: Annotated[
        float | None, _option("--seconds", "simulated time; default: 300 for chat, else 90 to 120", "SECONDS", SEARCH)
    ] = None,
    seed: Annotated[int | None, _option("--seed", "seed of the simulated traffic, default 1", "N", SEARCH)] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="serve the two best settings on a private engine", rich_help_panel=SEARCH),
    ] = False,
    runs: Annotated[int | None, _option("--runs", "runs of each verification, default 1", "N", SEARCH)] = None,
    recording: Annotated[
        Path | None, _option("--record", "write the simulation of the choice for `slotdeck replay`", "FILE", SEARCH)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with unrounded numbers")] = False,
    socket: SocketOption = None,
) -> None:
    """Show how many people fit, what to set, and why, for this machine or for one you do not own yet.

    KV bytes per token = 2 x layers x kv heads x head dim x bytes per value. Requests in flight = users x seconds of
    work for a turn / seconds from one turn to the next.

    With --kind, or --from for recorded traffic, the engine's own scheduler runs on a virtual clock with the speeds that
    `slotdeck bench --calibrate` measured. It tries hundreds of settings and recommends one that reaches your goals.
    """
    from slotdeck.console.advice.capacity import CapacityError
    from slotdeck.console.advice.plan_report import plan_json, plan_text
    from slotdeck.console.advice.planner import make_plan
    from slotdeck.console.cli.exits import USAGE, fail
    from slotdeck.console.cli.flags import check_settings, merge_flags
    from slotdeck.console.cli.plan_inputs import Asked, question_from
    from slotdeck.console.client.admin import AdminClient
    from slotdeck.engine.paths import default_socket

    explicit = merge_flags(context, {} if socket is None else {"socket": socket}, ("socket",))
    settings = check_settings(explicit)
    search_flags = {
        "--to": end, "--ttft-p95": ttft_p95, "--itl-p95": itl_p95, "--modes": modes, "--seconds": seconds,
        "--seed": seed, "--verify": verify or None, "--runs": runs, "--record": recording,
    }  # fmt: skip
    if kind is not None or begin is not None:
        wanted = _search(search_flags, kind=kind, begin=begin, users=users, context=context_tokens, as_json=as_json)
        capacity_flags = {
            "--model-config": model_config, "--model": model, "--layers": layers, "--kv-heads": kv_heads,
            "--head-dim": head_dim, "--weights-size": weights_size, "--weights": weights, "--kv-dtype": kv_dtype,
            "--gpu": gpu, "--utilisation": utilisation, "--memory": memory, "--prefill-speed": prefill_speed,
            "--decode-speed": decode_speed, "--turn-seconds": turn_seconds, "--generate-seconds": generate_seconds,
            "--prompt": prompt, "--answer": answer,
        }  # fmt: skip
        for flag in (name for name, value in capacity_flags.items() if value is not None):
            fail(
                f"{flag} cannot be used with --kind or --from, which simulate given traffic with measured speeds", USAGE
            )
        from slotdeck.console.cli.plan_search import plan_search

        plan_search(wanted, AdminClient(settings.socket or default_socket()), settings)
        return
    for flag in (name for name, value in search_flags.items() if value is not None):
        fail(f"{flag} needs --kind or --from", USAGE)
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


def _search(
    flags: dict[str, Any],
    *,
    kind: Literal["chat", "agent", "documents"] | None,
    begin: str | None,
    users: int | None,
    context: int | None,
    as_json: bool,
) -> Search:
    """Check the flags of a search. A bad one ends the command with exit code 2."""
    from slotdeck.console.advice.plan import USERS
    from slotdeck.console.advice.search import Goals
    from slotdeck.console.cli.exits import USAGE, fail
    from slotdeck.console.cli.plan_search import Search

    modes = tuple((flags["--modes"] or MODES[0]).split(","))
    for mode in modes:
        if mode not in MODES:
            fail(f"--modes must be a list of {', '.join(MODES)}, not {flags['--modes']!r}", USAGE)
    for flag in ("--ttft-p95", "--itl-p95", "--seconds", "--runs"):
        if flags[flag] is not None and flags[flag] <= 0:
            fail(f"{flag} must be above 0", USAGE)
    if users is not None and not 1 <= users <= MAX_USERS:
        fail(f"--users must be between 1 and {MAX_USERS}", USAGE)
    if begin is not None and (kind is not None or users is not None or flags["--verify"] or flags["--seconds"]):
        fail("--from replays recorded traffic: leave out --kind, --users, --seconds and --verify", USAGE)
    if flags["--verify"] and (flags["--seconds"] or 0) > MAX_VERIFIED_SECONDS:
        fail(f"with --verify, --seconds must be at most {MAX_VERIFIED_SECONDS:.0f}", USAGE)
    if context is not None and not MIN_CONTEXT <= context <= MAX_CONTEXT:
        fail(f"--context must be between {MIN_CONTEXT} and {MAX_CONTEXT} tokens", USAGE)
    return Search(
        kind=kind,
        begin=begin,
        end=flags["--to"],
        users=USERS if users is None else users,
        seconds=flags["--seconds"],
        context=context,
        goals=Goals(flags["--ttft-p95"] or Goals.ttft_p95, flags["--itl-p95"] or Goals.itl_p95),
        modes=modes,
        seed=1 if flags["--seed"] is None else flags["--seed"],
        verify=bool(flags["--verify"]),
        runs=flags["--runs"] or 1,
        recording=flags["--record"],
        as_json=as_json,
    )
