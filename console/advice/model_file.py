"""The few numbers that capacity needs from a Hugging Face ``config.json``, of any family and not only of those served.

No file is opened here: the caller hands in the decoded document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotdeck.console.advice.capacity import CapacityError, ModelFacts

KEEPING = ("full_attention", "sliding_attention", "chunked_attention")
"""Kinds of layers that keep K and V."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_BY_HAND = "give --layers, --kv-heads, --head-dim and --weights-size instead"


def facts_from_config(document: Mapping[str, Any], name: str, weights: str = "bf16") -> ModelFacts:
    """The facts of a ``config.json``; ``weights`` is the type they will have (a key of WEIGHT_WIDTHS).

    ``weight_bytes`` and ``parameters`` are ``None`` where the file does not tell: a mixture of experts, quantised
    weights. Raises CapacityError for a missing or unreadable field, and for caches of another shape.
    """
    part = document.get("text_config")
    config: Mapping[str, Any] = part if isinstance(part, Mapping) else document
    if config.get("kv_lora_rank"):
        raise CapacityError(f"{name}: latent attention keeps a cache of another shape; {_BY_HAND}")
    try:
        heads, hidden = _number(config, "num_attention_heads", "n_head"), _number(config, "hidden_size", "n_embd")
        layers = _number(config, "num_hidden_layers", "n_layer")
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or hidden // heads)
        notes: list[str] = []
        layers = _keeping(config, layers, notes)
        parameters = _parameters(config, 2 * (heads + kv_heads) * head_dim, hidden, notes)
    except KeyError as error:
        raise CapacityError(f"{name} lacks {error.args[0]!r}; {_BY_HAND}") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CapacityError(f"{name} holds a value that cannot be read ({error}); {_BY_HAND}") from error
    quantised = document.get("quantization_config") or config.get("quantization_config")
    if quantised:
        notes.append("The weights are quantised: give their size with --weights-size.")
    trained = config.get("max_position_embeddings") or config.get("n_positions")
    facts = ModelFacts(
        name=name,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        trained_context=int(trained) if isinstance(trained, int) and trained > 0 else None,
        parameters=parameters,
        embedding=_embedding(config, hidden) if parameters is not None else 0,
        tied=bool(config.get("tie_word_embeddings", False)),
        notes=tuple(notes),
    )
    return facts if quantised else facts.weighing(weights)


def _embedding(config: Mapping[str, Any], hidden: int) -> int:
    return int(config["vocab_size"]) * hidden


def _number(config: Mapping[str, Any], *names: str) -> int:
    """The first of the names that is there, above 0."""
    for name in names:
        if config.get(name) is not None:
            value = int(config[name])
            if value < 1:
                raise ValueError(f"{name} is {value}")
            return value
    raise KeyError(names[0])


def _keeping(config: Mapping[str, Any], layers: int, notes: list[str]) -> int:
    """Layers that keep K and V for every token, as far as the file names their kinds."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        keeping = sum(kind in KEEPING for kind in kinds)
        if keeping and keeping != layers:
            notes.append(f"Only {keeping} of {layers} layers keep K and V; the state of the others is not counted.")
            layers = keeping
        if any(kind in KEEPING[1:] for kind in kinds):
            notes.append("Layers with a sliding window are counted in full: a server that cuts them holds more.")
    elif config.get("sliding_window") and config.get("use_sliding_window", True):
        notes.append("The sliding window is not counted: a server that cuts the cache holds more.")
    return layers


def _parameters(config: Mapping[str, Any], attention: int, hidden: int, notes: list[str]) -> int | None:
    """Weights of a dense decoder with a gated MLP, as all Llama-like families have; ``None`` for others.

    ``attention`` is the width of queries, keys, values and outputs of one layer together.
    """
    if any(int(config.get(name) or 0) > 1 for name in _EXPERTS):
        notes.append("A mixture of experts: give the size of its weights with --weights-size.")
        return None
    if "intermediate_size" not in config or "vocab_size" not in config:
        notes.append("The file does not tell the number of weights: give their size with --weights-size.")
        return None
    layer = hidden * attention + 3 * hidden * int(config["intermediate_size"]) + 2 * hidden
    embeddings = _embedding(config, hidden) * (1 if config.get("tie_word_embeddings", False) else 2)
    return int(config.get("num_hidden_layers") or config["n_layer"]) * layer + embeddings + hidden
