"""Loads a model by name: finds it, checks it, estimates its memory, and reads its weights.

A source is the embedded model, a GGUF file, a Hugging Face folder, or a hub id. The network is not used for local paths
and for models that are in the cache, and code from a model is never run.
"""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from slotdeck.engine.kernels.library import Kernels
from slotdeck.engine.kernels.packed import WEIGHT_BITS
from slotdeck.engine.model.attention_backend import Span
from slotdeck.engine.model.checkpoint import Checkpoint, check_tensors
from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.errors import ModelError, UsageError, human_bytes
from slotdeck.engine.model.fetch import EMBEDDED_ID, embedded_model_path
from slotdeck.engine.model.four_bit_checkpoint import FourBitCheckpoint
from slotdeck.engine.model.gguf_file import GGUFCheckpoint
from slotdeck.engine.model.gguf_tokenizer import tokenizer_folder
from slotdeck.engine.model.hardware import DTYPES, available_memory, choose_device
from slotdeck.engine.model.hub import hub_folder
from slotdeck.engine.model.hugging_face_folder import HuggingFaceCheckpoint
from slotdeck.engine.model.linear import packing_works
from slotdeck.engine.model.llama.native_decoder import NATIVE_KV_DTYPE, NativeDecoder
from slotdeck.engine.model.llama.packing import packed_bytes, packed_model, packing_bytes
from slotdeck.engine.model.llama.tensors import expected_shapes, ignorable_tensors
from slotdeck.engine.model.llama.torch_decoder import TorchDecoder
from slotdeck.engine.model.llama.weights import read_weights
from slotdeck.engine.model.step_decoder import Batch, StepDecoder
from slotdeck.engine.model.torch_attention import TorchAttention
from slotdeck.engine.model.weight_choice import choose_weights

logger = logging.getLogger(__name__)

EMBEDDED = "smollm2"
"""The name of the embedded model."""


@dataclass(frozen=True)
class ModelSource:
    """A model that was found and checked but not loaded, and the memory it will take."""

    checkpoint: Checkpoint
    tokenizer_folder: Path
    device: torch.device
    weights: str
    """"int8", "int4", "fp32" or "bf16": the type the weights will have."""
    kernels: Kernels | None
    """What computes int8 and int4 weights; None for torch."""
    weight_bytes: int
    """Memory of the weights once loaded."""
    peak_bytes: int
    """Memory taken while loading."""
    notes: tuple[str, ...]

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def kv_dtype(self) -> str:
        """Default type of the KV pool."""
        return NATIVE_KV_DTYPE if self.kernels is not None else self.weights


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to compute."""

    config: ModelConfig
    decoder: StepDecoder
    tokenizer_folder: Path
    """A folder that `transformers.AutoTokenizer.from_pretrained` opens offline."""
    weights: str
    """"int8", "int4", "fp32" or "bf16"."""
    device: torch.device
    weight_bytes: int
    load_seconds: float
    notes: tuple[str, ...]
    """Sentences for the admin that hold as long as the model is loaded."""

    @property
    def id(self) -> str:
        return self.config.id

    @property
    def kv_dtype(self) -> str:
        """Default type of the KV pool."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.decoder.kv_dtype)

    @property
    def kernels(self) -> str:
        """What computes: "torch", or "native" and the instruction set."""
        return self.decoder.backend_name


def load_model(source: str, *, weights: str = "auto", device: str = "auto") -> LoadedModel:
    """Find, check and load a model; see :func:`find_model` for the arguments, and :func:`load`."""
    return load(find_model(source, weights=weights, device=device))


def memory_beside(found: ModelSource) -> int:
    """Bytes that will be available on its device beside the weights. Raises ModelError if the weights do not fit."""
    free = available_memory(found.device)
    if found.peak_bytes > free:
        smaller = ", take --weights bf16 (half of it)" if found.weights == "fp32" else ""
        raise ModelError(
            f"{found.config.id} needs {human_bytes(found.peak_bytes)} while loading as {found.weights}, but only"
            f" {human_bytes(free)} are available on {found.device}. Use a smaller model{smaller} or free some memory."
        )
    return free - found.weight_bytes


def load(found: ModelSource) -> LoadedModel:
    """Read the weights of a model that was found.

    Raises ModelError if they do not fit into memory, and if the first forward pass gives NaN or infinity.
    """
    start = time.monotonic()
    config = found.config
    logger.info(
        "loading %s: %s parameters, %s of memory as %s on %s (%s left beside them)",
        config.id, f"{config.num_parameters:,}", human_bytes(found.weight_bytes), found.weights, found.device,
        human_bytes(memory_beside(found)),
    )  # fmt: skip
    with torch.inference_mode():
        decoder: StepDecoder
        if found.kernels is None:
            weights = read_weights(found.checkpoint, DTYPES[found.weights], found.device, _workers())
            decoder = TorchDecoder(config, weights, TorchAttention(found.device, config.sliding_window))
        else:
            model = packed_model(found.checkpoint, found.kernels, _workers(), found.weights)
            decoder = NativeDecoder(config, model, found.kernels)
        _check_first_forward(decoder)
    seconds = time.monotonic() - start
    logger.info("loaded %s in %.1f s", config.id, seconds)
    return LoadedModel(
        config=config,
        decoder=decoder,
        tokenizer_folder=found.tokenizer_folder,
        weights=found.weights,
        device=found.device,
        weight_bytes=found.weight_bytes,
        load_seconds=seconds,
        notes=found.notes,
    )


def find_model(source: str, *, weights: str = "auto", device: str = "auto") -> ModelSource:
    """Find a model and check everything that can be checked before its weights are read.

    ``source``: "smollm2" (embedded, fetched on first use), a .gguf file, a folder with config.json and safetensors, or
    a hub id ("org/name"). ``weights``: "auto", "int8", "int4", "fp32",
    "bf16". ``device``: "auto", "cpu", "cuda", "cuda:N".
    Raises UsageError: not found, no such device. ModelError: damaged, incomplete, of an unsupported family.
    """
    place = choose_device(device)
    checkpoint, folder = _open(source)
    names = checkpoint.shapes
    check_tensors(checkpoint, expected_shapes(checkpoint.config), ignorable_tensors(checkpoint.config, names))
    in_four_bits = isinstance(checkpoint, FourBitCheckpoint) and checkpoint.in_four_bits
    choice = choose_weights(weights, place, in_four_bits)
    notes = [choice.reason]
    if not checkpoint.config.stop_token_ids:
        notes.append("The model names no end token: answers end only at max_tokens or the context.")
    weight_bytes, temporary = _estimate(checkpoint, choice.weights, place)
    return ModelSource(
        checkpoint=checkpoint,
        tokenizer_folder=folder,
        device=place,
        weights=choice.weights,
        kernels=choice.kernels,
        weight_bytes=weight_bytes,
        peak_bytes=weight_bytes + temporary,
        notes=tuple(notes),
    )


def _open(source: str) -> tuple[Checkpoint, Path]:
    if source == EMBEDDED:
        return _open_gguf(embedded_model_path(), EMBEDDED_ID)
    path = Path(source).expanduser()
    if path.is_dir():
        return HuggingFaceCheckpoint(path, path.resolve().name), path
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise UsageError(
                f"{path} is not a .gguf file; for safetensors, point --model at the folder that holds them."
            )
        return _open_gguf(path, path.stem)
    if path.suffix.lower() == ".gguf" or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", source):
        raise UsageError(
            f"no model at {source!r}: --model takes {EMBEDDED} (embedded), a folder with config.json and safetensors,"
            " a .gguf file, or a hub id like org/name."
        )
    folder = hub_folder(source)
    return HuggingFaceCheckpoint(folder, source), folder


def _open_gguf(path: Path, id: str) -> tuple[Checkpoint, Path]:
    checkpoint = GGUFCheckpoint(path, id)
    return checkpoint, tokenizer_folder(checkpoint)


def _estimate(checkpoint: Checkpoint, weights: str, device: torch.device) -> tuple[int, int]:
    """Bytes of the loaded weights, and additional bytes needed temporarily while loading."""
    config = checkpoint.config
    layer = config.hidden_size * (config.intermediate_size * 3 + config.num_heads * config.head_dim * 4)
    temporary = 4 * (checkpoint.largest_tensor + _workers() * layer)
    if weights in WEIGHT_BITS:
        return packed_bytes(config, weights), packing_bytes(config, _workers())
    dtype, values = DTYPES[weights], config.num_parameters
    if config.tie_embeddings and device.type == "cpu" and packing_works(dtype):
        values += config.vocab_size * config.hidden_size  # rows to look up, and a packed copy to multiply with
    return values * dtype.itemsize, temporary


def _workers() -> int:
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _check_first_forward(decoder: StepDecoder) -> None:
    """Compute a few tokens, so that weights that overflow or are damaged are found now and not by the first user."""
    config = decoder.config
    count = min(4, config.max_positions)
    store = decoder.allocate_kv(1, decoder.kv_dtype)
    positions = range(count)  # also the slots of the tokens, since they are in block 0
    batch = Batch(
        token_ids=[position % config.vocab_size for position in positions],
        positions=positions,
        slot_mapping=positions,
        attention_metadata=decoder.build_attention_metadata([Span(0, count, [0])], positions, store),
        logit_rows=positions,
    )
    output = decoder.forward(batch, store)
    if not (bool(output.finite.all()) and bool(torch.isfinite(output.logits).all())):
        raise ModelError(
            f"{config.id} computes NaN or infinity on its first tokens: its weights are damaged or were trained for"
            " another type. Fetch the model again, or try --weights fp32."
        )
