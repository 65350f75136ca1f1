"""Reads what capacity needs from a Hugging Face ``config.json``, also of families that Slotdeck does not serve.

The caller passes the decoded document; no file is opened here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotdeck.console.advice.capacity import CapacityError, ModelFacts

KEEPING = ("full_attention", "sliding_attention", "chunked_attention")
"""Values of ``layer_types`` whose layers keep K and V."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_BY_HAND = "give --layers, --kv-heads, --head-dim and --weights-size instead"


def facts_from_config(document: Mapping[str, Any], name: str, weights: str = "bf16") -> ModelFacts:
    """The facts of a model from its ``config.json``; ``weights`` is the type to load it with (a key of WEIGHT_WIDTHS).

    ``weight_bytes`` and ``parameters`` are ``None`` if the file does not determine them, as with a mixture of experts
    or quantised weights. Raises CapacityError for a missing or unreadable field, and for another shape of KV cache.
    """
    part = document.get("text_config")
    config: Mapping[str, Any] = part if isinstance(part, Mapping) else document
    if config.get("kv_lora_rank"):
        raise CapacityError(f"{name}: latent attention uses a KV cache of another shape; {_BY_HAND}")
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
        raise CapacityError(f"{name} has a value that cannot be read ({error}); {_BY_HAND}") from error
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
    return facts if quantised else facts.with_weights(weights)


def _embedding(config: Mapping[str, Any], hidden: int) -> int:
    return int(config["vocab_size"]) * hidden


def _number(config: Mapping[str, Any], *names: str) -> int:
    """The value of the first name that is present. Raises ValueError below 1, KeyError if none is present."""
    for name in names:
        if config.get(name) is not None:
            value = int(config[name])
            if value < 1:
                raise ValueError(f"{name} is {value}")
            return value
    raise KeyError(names[0])


def _keeping(config: Mapping[str, Any], layers: int, notes: list[str]) -> int:
    """How many layers keep K and V, if the file lists their kinds; ``layers`` otherwise."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        keeping = sum(kind in KEEPING for kind in kinds)
        if keeping and keeping != layers:
            notes.append(
                f"Only {keeping} of {layers} layers keep K and V. The state of the other layers is not counted."
            )
            layers = keeping
        if any(kind in KEEPING[1:] for kind in kinds):
            notes.append(
                "Layers with a sliding window are counted in full. A server that only keeps the window holds more."
            )
    elif config.get("sliding_window") and config.get("use_sliding_window", True):
        notes.append("The sliding window is ignored. A server that only keeps the window holds more.")
    return layers


def _parameters(config: Mapping[str, Any], attention: int, hidden: int, notes: list[str]) -> int | None:
    """Number of weights of a dense decoder with a gated MLP, as in all Llama-like families; ``None`` for others.

    ``attention`` is the total width of queries, keys, values and outputs of one layer.
    """
    if any(int(config.get(name) or 0) > 1 for name in _EXPERTS):
        notes.append("This is a mixture of experts: give the size of its weights with --weights-size.")
        return None
    if "intermediate_size" not in config or "vocab_size" not in config:
        notes.append("The file does not determine the number of weights: give their size with --weights-size.")
        return None
    layer = hidden * attention + 3 * hidden * int(config["intermediate_size"]) + 2 * hidden
    embeddings = _embedding(config, hidden) * (1 if config.get("tie_word_embeddings", False) else 2)
    return int(config.get("num_hidden_layers") or config["n_layer"]) * layer + embeddings + hidden
