"""A Hugging Face folder as a checkpoint: config.json, safetensors (one file or shards), tokenizer.

Missing files, missing shards and types that cannot be read are reported by name before any weight is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from slotdeck.engine.model.checkpoint import listed
from slotdeck.engine.model.errors import ModelError
from slotdeck.engine.model.llama.config import config_from_hugging_face

_FLOAT_TYPES = {"F32", "F16", "BF16", "F64"}


class HuggingFaceCheckpoint:
    """The tensors of a local folder. Never uses the network. Raises ModelError for a model that cannot be served."""

    def __init__(self, folder: Path, id: str) -> None:
        self.folder = folder
        document = _read_json(folder / "config.json", id)
        missing = missing_files(folder)
        if missing:
            raise ModelError(
                f"{id}: {listed(missing)} missing in {folder}. Copy or download the whole model again;"
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
        """The files that the model is read from. If one of them changes, it is another model."""
        return [self.folder / name for name in ("config.json", *self._files)]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor in the files."""
        return self._shapes

    @property
    def largest_tensor(self) -> int:
        """Number of values in the largest tensor."""
        return max(int(torch.Size(shape).numel()) for shape in self._shapes.values())

    def get(self, name: str) -> torch.Tensor:
        """The tensor as stored. Safe to call from several threads."""
        return self._files[self._owner[name]].get_tensor(name)

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """``count`` rows from ``first`` on (fewer at the end) as stored, without reading the others."""
        part: torch.Tensor = self._files[self._owner[name]].get_slice(name)[first : first + count]
        return part

    def rope_factors(self) -> torch.Tensor | None:
        """None, since a Hugging Face folder has the scaling in its config."""
        return None


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files of the model. Raises ModelError if it has only .bin weights."""
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
    """Names of weight files that belong to the model and do not exist."""
    return [name for name in weight_files(folder) if not (folder / name).is_file()]


def _stop_token_ids(folder: Path, document: dict[str, Any]) -> frozenset[int]:
    """The end tokens of config, generation config and tokenizer together, since they often differ."""
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
