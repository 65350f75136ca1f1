"""What a model is made of: the numbers that the decoder, the KV pool and the capacity arithmetic need.

Read from a Hugging Face ``config.json`` or from GGUF metadata, without torch. What the decoder does not compute
exactly is refused here, in a sentence that names what is supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slotdeck.engine.core import kv_memory
from slotdeck.engine.model.errors import ModelError

SUPPORTED = (
    "Supported are LlamaForCausalLM and MistralForCausalLM (without biases) as a folder with safetensors,"
    " and GGUF files of architecture llama."
)
SUPPORTED_ROPE = ("default", "linear", "llama3")
MISTRAL_WINDOW = 4096
"""The sliding window of a ``config.json`` of Mistral that says nothing of one; one without a window says null."""


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched; ``kind`` is one of SUPPORTED_ROPE. The last three belong to llama3."""

    kind: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a decoder of the Llama family."""

    id: str
    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    """Trained context in tokens; no larger context may be served."""
    rope_theta: float
    rope_scaling: RopeScaling
    rms_norm_eps: float
    tie_embeddings: bool
    stop_token_ids: frozenset[int]
    sliding_window: int | None = None
    """Newest tokens that a query sees in every layer, its own included; None: all."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ModelError(f"{self.id}: {name} must be at least 1, not {getattr(self, name)}")
        if self.vocab_size < 1 or self.max_positions < 1:
            raise ModelError(f"{self.id}: vocabulary and trained context must not be empty")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.id}: {self.num_heads} heads cannot share {self.num_kv_heads} key-value heads evenly"
            )
        if self.head_dim % 2:
            raise ModelError(f"{self.id}: head_dim must be even, not {self.head_dim}")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ModelError(f"{self.id}: sliding_window must be at least 1, not {self.sliding_window}")

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """Bytes of K and V of one token in all layers, without scales; see :mod:`slotdeck.engine.core.kv_memory`."""
        return kv_memory.kv_bytes_per_token(self.num_layers, self.num_kv_heads, self.head_dim, kv_dtype)

    def scale_bytes_per_token(self, kv_dtype: str) -> int:
        """Bytes of the scales of one token in all layers; 0 unless ``kv_dtype`` is int8."""
        return kv_memory.scale_bytes_per_token(self.num_layers, self.num_kv_heads, kv_dtype)

    def token_bytes(self, kv_dtype: str) -> int:
        """Bytes that one token takes in the KV pool: K, V and scales."""
        return self.kv_bytes_per_token(kv_dtype) + self.scale_bytes_per_token(kv_dtype)

    @property
    def num_parameters(self) -> int:
        """Weights of the model, the tied embedding counted once."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return self.num_layers * layer + embeddings + self.hidden_size


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
    """A sliding window as the decoder needs it: one that reaches as far as the trained context hides nothing."""
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
