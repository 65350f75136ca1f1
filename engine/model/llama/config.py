"""Reads the config of a Llama model from a Hugging Face ``config.json`` or from GGUF metadata.

A model that the decoders would not compute exactly is refused here, in a sentence that names what is supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotdeck.engine.model.config import SUPPORTED_ROPE, ModelConfig, RopeScaling
from slotdeck.engine.model.errors import ModelError

SUPPORTED = (
    "Supported are LlamaForCausalLM and MistralForCausalLM (without biases) as a folder with safetensors,"
    " and GGUF files of architecture llama."
)
MISTRAL_WINDOW = 4096
"""Sliding window of a Mistral model whose ``config.json`` does not name one. A model without a window says null."""


def config_from_hugging_face(document: Mapping[str, Any], id: str, stop_token_ids: frozenset[int]) -> ModelConfig:
    """Read the fields of a ``config.json``.

    Raises ModelError for another architecture, biases, another activation, quantised weights, an unknown rotary
    scaling, a sliding window in some layers only, or a missing field.
    """
    names = document.get("architectures") or ["none named"]
    architecture = str(names[0])
    if architecture not in ("LlamaForCausalLM", "MistralForCausalLM"):
        raise ModelError(f"{id}: architecture {architecture} is not supported. {SUPPORTED}")
    if document.get("quantization_config"):
        kind = document["quantization_config"].get("quant_method", "unknown")
        raise ModelError(f"{id}: {kind}-quantised weights are not supported; use the original model. {SUPPORTED}")
    if document.get("attention_bias") or document.get("mlp_bias"):
        raise ModelError(f"{id}: a model with attention or MLP biases is not supported. {SUPPORTED}")
    if document.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"{id}: activation {document['hidden_act']} is not supported, only silu. {SUPPORTED}")
    try:
        num_heads = int(document["num_attention_heads"])
        hidden_size = int(document["hidden_size"])
        max_positions = int(document.get("max_position_embeddings") or 2048)
        window = document.get("sliding_window", MISTRAL_WINDOW) if architecture == "MistralForCausalLM" else None
        window = _window(window, max_positions)
        if window and any(kind != "sliding_attention" for kind in document.get("layer_types") or ()):
            raise ModelError(f"{id}: a sliding window in some layers only is not supported. {SUPPORTED}")
        theta, scaling = _rope(document, id, max_positions)
        return ModelConfig(
            id=id,
            architecture=architecture,
            num_layers=int(document["num_hidden_layers"]),
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=int(document.get("num_key_value_heads") or num_heads),
            head_dim=int(document.get("head_dim") or hidden_size // num_heads),
            intermediate_size=int(document["intermediate_size"]),
            vocab_size=int(document["vocab_size"]),
            max_positions=max_positions,
            rope_theta=theta,
            rope_scaling=scaling,
            rms_norm_eps=float(document.get("rms_norm_eps", 1e-6)),
            tie_embeddings=bool(document.get("tie_word_embeddings", False)),
            stop_token_ids=stop_token_ids,
            sliding_window=window,
        )
    except KeyError as error:
        raise ModelError(f"{id}: config.json lacks {error.args[0]!r}") from error
    except (TypeError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{id}: config.json holds a value that cannot be read: {error}") from error


def _window(tokens: Any, max_positions: int) -> int | None:
    """The sliding window for the decoder: None if it is as long as the trained context, since it hides nothing then."""
    window = int(tokens or 0)
    return window if window and window < max_positions else None


def _rope(document: Mapping[str, Any], id: str, max_positions: int) -> tuple[float, RopeScaling]:
    """Base and scaling from ``rope_parameters`` (newer files) or ``rope_theta`` and ``rope_scaling``."""
    parameters = document.get("rope_parameters") or document.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or document.get("rope_theta") or 10000.0)
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    if kind not in SUPPORTED_ROPE:
        raise ModelError(
            f"{id}: rotary scaling {kind!r} is not supported; supported are {', '.join(SUPPORTED_ROPE)}."
            " Serving it without would give wrong text."
        )
    if float(parameters.get("partial_rotary_factor", document.get("partial_rotary_factor", 1.0)) or 1.0) != 1.0:
        raise ModelError(f"{id}: partial rotary embedding is not supported. {SUPPORTED}")
    if kind == "default":
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling("linear", factor=float(parameters["factor"]))
    return theta, RopeScaling(
        "llama3",
        factor=float(parameters["factor"]),
        low_frequency_factor=float(parameters["low_freq_factor"]),
        high_frequency_factor=float(parameters["high_freq_factor"]),
        original_positions=int(parameters.get("original_max_position_embeddings") or max_positions),
    )


def config_from_gguf(metadata: Mapping[str, Any], id: str, *, vocab_size: int, tied: bool) -> ModelConfig:
    """Read the scalar metadata of a GGUF file. Raises ModelError as :func:`config_from_hugging_face` does."""
    architecture = str(metadata.get("general.architecture", "none named"))
    if architecture != "llama":
        raise ModelError(f"{id}: GGUF architecture {architecture} is not supported. {SUPPORTED}")
    if int(metadata.get("llama.expert_count") or 0) > 0:
        raise ModelError(f"{id}: a mixture of experts is not supported. {SUPPORTED}")
    kind = str(metadata.get("llama.rope.scaling.type", "none"))
    if kind not in ("none", "linear"):
        raise ModelError(f"{id}: rotary scaling {kind!r} in a GGUF file is not supported; supported are none, linear.")
    try:
        num_heads = int(metadata["llama.attention.head_count"])
        hidden_size = int(metadata["llama.embedding_length"])
        head_dim = int(metadata.get("llama.attention.key_length") or hidden_size // num_heads)
        if int(metadata.get("llama.rope.dimension_count") or head_dim) != head_dim:
            raise ModelError(f"{id}: partial rotary embedding is not supported. {SUPPORTED}")
        if int(metadata.get("llama.attention.value_length") or head_dim) != head_dim:
            raise ModelError(f"{id}: keys and values of different sizes are not supported. {SUPPORTED}")
        factor = float(metadata.get("llama.rope.scaling.factor") or 1.0)
        max_positions = int(metadata["llama.context_length"])
        return ModelConfig(
            id=id,
            architecture="LlamaForCausalLM",
            num_layers=int(metadata["llama.block_count"]),
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=int(metadata.get("llama.attention.head_count_kv") or num_heads),
            head_dim=head_dim,
            intermediate_size=int(metadata["llama.feed_forward_length"]),
            vocab_size=vocab_size,
            max_positions=max_positions,
            rope_theta=float(metadata.get("llama.rope.freq_base") or 10000.0),
            rope_scaling=RopeScaling("linear", factor=factor) if kind == "linear" else RopeScaling(),
            rms_norm_eps=float(metadata["llama.attention.layer_norm_rms_epsilon"]),
            tie_embeddings=tied,
            stop_token_ids=frozenset(
                int(metadata[name])
                for name in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
                if metadata.get(name) is not None
            ),
            sliding_window=_window(metadata.get("llama.attention.sliding_window"), max_positions),
        )
    except KeyError as error:
        raise ModelError(f"{id}: the GGUF file lacks {error.args[0]!r}") from error
