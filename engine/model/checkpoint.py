"""A Hugging Face folder as a checkpoint: config.json, safetensors (one file or shards), tokenizer.

Everything is looked at before a weight is read: missing shards, missing or misshapen tensors and tensors that the
decoder would silently ignore are told by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from slotdeck.engine.kernels.four_bits import FourBits
from slotdeck.engine.model.config import ModelConfig, config_from_hugging_face
from slotdeck.engine.model.errors import ModelError

_FLOAT_TYPES = {"F32", "F16", "BF16", "F64"}
_LISTED = 8
"""Names listed in one message at most."""


class Checkpoint(Protocol):
    """Where weights come from, whatever the file format."""

    config: ModelConfig

    @property
    def files(self) -> list[Path]: ...

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    @property
    def largest_tensor(self) -> int: ...

    @property
    def in_four_bits(self) -> bool: ...

    def get(self, name: str) -> torch.Tensor: ...

    def rows(self, name: str, first: int, count: int) -> torch.Tensor: ...

    def four_bits(self, name: str) -> FourBits | None: ...

    def rope_factors(self) -> torch.Tensor | None: ...


class HuggingFaceCheckpoint:
    """The tensors of a local folder. Never touches the network. Raises ModelError for what cannot be served."""

    def __init__(self, folder: Path, id: str) -> None:
        self.folder = folder
        document = _read_json(folder / "config.json", id)
        missing = missing_files(folder)
        if missing:
            raise ModelError(
                f"{id}: {_listed(missing)} missing in {folder}. Copy or download the whole model again;"
                " it cannot be served in part."
            )
        if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
            raise ModelError(
                f"{id}: {folder} holds no tokenizer (tokenizer.json). Copy it there from the model's page."
            )
        self.config = config_from_hugging_face(document, id, _stop_token_ids(folder, document))
        self._files: dict[str, Any] = {}
        self._owner: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for name in weight_files(folder):
            try:
                file = safe_open(folder / name, framework="pt")
                self._files[name] = file
                for key in file.keys():  # noqa: SIM118 (not a mapping)
                    part = file.get_slice(key)
                    if part.get_dtype() not in _FLOAT_TYPES:
                        raise ModelError(
                            f"{id}: {key} is stored as {part.get_dtype()}; only 32 and 16 bit floating point weights"
                            " are supported. Use the original, not the quantised model."
                        )
                    self._owner[key] = name
                    self._shapes[key] = tuple(part.get_shape())
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{id}: {folder / name} is damaged ({error}). Download it again.") from error

    @property
    def files(self) -> list[Path]:
        """What the model is read from: a change of any of them makes it another model."""
        return [self.folder / name for name in ("config.json", *self._files)]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor in the files."""
        return self._shapes

    @property
    def largest_tensor(self) -> int:
        """Values in the largest tensor."""
        return max(int(torch.Size(shape).numel()) for shape in self._shapes.values())

    @property
    def in_four_bits(self) -> bool:
        """Whether all products of the layers are stored on the grid of 4-bit weights."""
        return False

    def get(self, name: str) -> torch.Tensor:
        """The tensor as stored. Safe to call from several threads."""
        return self._files[self._owner[name]].get_tensor(name)

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Some rows of a tensor as stored (fewer at its end), without reading the others."""
        part: torch.Tensor = self._files[self._owner[name]].get_slice(name)[first : first + count]
        return part

    def four_bits(self, name: str) -> FourBits | None:
        """None: nothing here is stored in 4 bits."""
        return None

    def rope_factors(self) -> torch.Tensor | None:
        """None: here the scaling is in the config."""
        return None


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files that make up the model; raises ModelError when there is none to look for."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        mapping = _read_json(index, folder.name).get("weight_map") or {}
        return sorted(set(mapping.values()))
    if (folder / "model.safetensors").is_file() or not any(folder.glob("*.bin")):
        return ["model.safetensors"]
    raise ModelError(
        f"{folder} holds only .bin weights, which may carry code and are not read."
        " Use a version of the model in safetensors."
    )


def missing_files(folder: Path) -> list[str]:
    """Weight files that the folder's index names and that are not there."""
    return [name for name in weight_files(folder) if not (folder / name).is_file()]


def check_tensors(checkpoint: Checkpoint) -> None:
    """Compare the tensors of a checkpoint with what its config promises. Raises ModelError listing the differences."""
    config, shapes = checkpoint.config, checkpoint.shapes
    expected = expected_shapes(config)
    problems: list[str] = []
    absent = sorted(name for name in expected if name not in shapes)
    if absent:
        problems.append(f"missing: {_listed(absent)}")
    wrong = [
        f"{name} {shapes[name]} instead of {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if wrong:
        problems.append(f"wrong shape: {_listed(wrong)}")
    unknown = sorted(name for name in shapes if name not in expected and not _ignorable(name, config))
    if unknown:
        problems.append(f"not part of a supported model: {_listed(unknown)}")
    if problems:
        raise ModelError(f"{config.id}: the weights do not fit the config; {'; '.join(problems)}")


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a model of this config consists of, by its Hugging Face name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    result: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for number in range(config.num_layers):
        result |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    result["model.norm.weight"] = (hidden,)
    if not config.tie_embeddings:
        result["lm_head.weight"] = (config.vocab_size, hidden)
    return result


def _ignorable(name: str, config: ModelConfig) -> bool:
    return (
        name.endswith("rotary_emb.inv_freq")
        or name == "rope_freqs.weight"
        or (name == "lm_head.weight" and config.tie_embeddings)
    )


def _stop_token_ids(folder: Path, document: dict[str, Any]) -> frozenset[int]:
    """Union of the end tokens of config, generation config and tokenizer (they often differ)."""
    found: set[int] = set()
    generation = folder / "generation_config.json"
    for source in (document, _read_json(generation, folder.name) if generation.is_file() else {}):
        value = source.get("eos_token_id")
        found |= set(value) if isinstance(value, list) else set() if value is None else {int(value)}
    tokenizer_config, tokenizer = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if tokenizer_config.is_file() and tokenizer.is_file():
        end = _read_json(tokenizer_config, folder.name).get("eos_token")
        end = end.get("content") if isinstance(end, dict) else end
        if end is not None:
            content = _read_json(tokenizer, folder.name)
            vocabulary = (content.get("model") or {}).get("vocab")
            ids = dict(vocabulary) if isinstance(vocabulary, dict) else {}
            ids |= {token["content"]: token["id"] for token in content.get("added_tokens") or []}
            if end in ids:
                found.add(int(ids[end]))
    return frozenset(found)


def _read_json(path: Path, id: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError(
            f"{id}: {path} is missing. Point --model at a folder with config.json and safetensors, or at a .gguf file."
        ) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{id}: {path} cannot be read ({error})") from error
    if not isinstance(document, dict):
        raise ModelError(f"{id}: {path} must hold a JSON object")
    return document


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
