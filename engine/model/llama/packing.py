"""Packs the weights of a Llama model in the order in which the native kernels read them: int8 or int4, in panels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from slotdeck.engine.kernels.four_bits import FourBits, joined, place, quantised
from slotdeck.engine.kernels.library import Kernels
from slotdeck.engine.kernels.packed import GROUP, PANEL, TILE, WEIGHT_BITS, Packed, PackedLayer, PackedModel, pad
from slotdeck.engine.model.checkpoint import Checkpoint
from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.four_bit_checkpoint import FourBitCheckpoint
from slotdeck.engine.model.llama.rotary import inverse_frequencies
from slotdeck.engine.model.packed_cache import load_or_pack
from slotdeck.engine.settings import BLOCK_SIZE

_HEAD_PART = 1024
"""Rows of the embedding and the head that a thread packs at a time."""


@dataclass(frozen=True)
class _Array:
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


class Arrays:
    """Every array of a packed model by name, with its offset in the file. The head always has 8 bits."""

    def __init__(self, config: ModelConfig, weights: str) -> None:
        bits = WEIGHT_BITS[weights]
        self.table: dict[str, _Array] = {}
        self.nbytes = 0
        hidden = config.hidden_size
        attended = config.num_heads * config.head_dim
        stride = pad(config.head_dim, TILE)
        self._add("embedding", "uint16", (config.vocab_size, hidden))
        for number in range(config.num_layers):
            prefix = f"{number}."
            self._add(prefix + "input_norm", "float32", (pad(hidden, GROUP),))
            self._add_product(prefix + "qkv", (config.num_heads + 2 * config.num_kv_heads) * stride, hidden, bits)
            self._add_product(prefix + "output", hidden, attended, bits)
            self._add(prefix + "mlp_norm", "float32", (pad(hidden, GROUP),))
            self._add_product(prefix + "gate_up", 2 * pad(config.intermediate_size, GROUP), hidden, bits)
            self._add_product(prefix + "down", hidden, config.intermediate_size, bits)
        self._add("norm", "float32", (pad(hidden, GROUP),))
        self._add_product("head", config.vocab_size, hidden, 8)

    def _add(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.table[name] = _Array(dtype, shape, self.nbytes)
        self.nbytes = pad(self.nbytes + self.table[name].nbytes, 64)

    def _add_product(self, name: str, columns: int, depth: int, bits: int) -> None:
        codes, scales = Packed.shapes(pad(columns, TILE), pad(depth, GROUP), bits)
        self._add(name + ".codes", "uint8", codes)
        self._add(name + ".scales", "uint16", scales)

    def views(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays as views of ``memory``, uint8 [nbytes]."""
        return {
            name: memory[array.offset : array.offset + array.nbytes].view(array.dtype).reshape(array.shape)
            for name, array in self.table.items()
        }


def packed_bytes(config: ModelConfig, weights: str) -> int:
    """Bytes of the packed weights of a model, of a type in WEIGHT_BITS."""
    return Arrays(config, weights).nbytes


def packing_bytes(config: ModelConfig, workers: int) -> int:
    """Bytes that packing takes temporarily beside the packed weights: a layer or part of the head per worker."""
    layer = config.hidden_size * (config.intermediate_size * 3 + config.num_heads * config.head_dim * 4)
    return 4 * workers * max(2 * layer, _HEAD_PART * config.hidden_size)


def packed_model(checkpoint: Checkpoint, kernels: Kernels, workers: int, weights: str = "int8") -> PackedModel:
    """The packed weights of a checkpoint: mapped from the cache, or packed now by ``workers`` threads and kept there.

    ``weights`` is a type of BITS. Raises what reading the checkpoint raises; trouble with the cache only costs the
    time of packing.
    """
    config, arrays = checkpoint.config, Arrays(checkpoint.config, weights)
    memory = load_or_pack(
        checkpoint, weights, arrays.nbytes, lambda to: _pack(arrays.views(to), checkpoint, kernels, workers, weights)
    )
    views = arrays.views(memory)

    def product(name: str) -> Packed:
        return Packed(views[name + ".codes"], views[name + ".scales"])

    def layer(number: int) -> PackedLayer:
        return PackedLayer(
            input_norm=views[f"{number}.input_norm"],
            qkv=product(f"{number}.qkv"),
            output=product(f"{number}.output"),
            mlp_norm=views[f"{number}.mlp_norm"],
            gate_up=product(f"{number}.gate_up"),
            down=product(f"{number}.down"),
        )

    return PackedModel(
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        eps=config.rms_norm_eps,
        block_size=BLOCK_SIZE,
        window=config.sliding_window or 0,
        embedding=views["embedding"],
        layers=[layer(number) for number in range(config.num_layers)],
        norm=views["norm"],
        head=product("head"),
        inverse_frequencies=inverse_frequencies(config, checkpoint.rope_factors()).numpy().copy(),
    )


def _pack(views: dict[str, np.ndarray], checkpoint: Checkpoint, kernels: Kernels, workers: int, weights: str) -> None:
    config = checkpoint.config
    stride = pad(config.head_dim, TILE)
    heads_in_order = np.full((config.num_heads + 2 * config.num_kv_heads, stride), -1)
    heads_in_order[:, : config.head_dim] = np.arange(heads_in_order.shape[0] * config.head_dim).reshape(
        -1, config.head_dim
    )
    alternating = _alternating_order(config.intermediate_size)

    def weight(name: str) -> np.ndarray:
        return np.ascontiguousarray(checkpoint.get(f"{name}.weight").to(torch.float32).numpy())

    def norm(view: str, name: str) -> None:
        values = weight(name)
        views[view][: len(values)] = values

    def put(name: str, parts: list[tuple[np.ndarray, int]]) -> None:
        """Pack each part, [rows, depth], at its first column. Columns that no part covers are zero."""
        into = Packed(views[name + ".codes"], views[name + ".scales"])
        into.codes.fill(128)
        for part, column in parts:
            kernels.pack(part, into, column)

    def put_four_bits(name: str, sources: list[str], order: np.ndarray | None = None) -> None:
        """Place the rows of all sources in ``order`` (-1: zeros). Sources that are stored in 4 bits are not rounded."""
        parts = [
            _stored_in_four_bits(checkpoint, f"{source}.weight") or quantised(weight(source)) for source in sources
        ]
        rows = joined(parts)
        place(rows if order is None else rows.arranged(order), Packed(views[name + ".codes"], views[name + ".scales"]))

    def layer(number: int) -> None:
        source, target = f"model.layers.{number}.", f"{number}."
        norm(target + "input_norm", source + "input_layernorm")
        norm(target + "mlp_norm", source + "post_attention_layernorm")
        if weights == "int4":
            put_four_bits(target + "qkv", [f"{source}self_attn.{name}_proj" for name in "qkv"], heads_in_order.ravel())
            put_four_bits(target + "output", [source + "self_attn.o_proj"])
            put_four_bits(target + "gate_up", [source + "mlp.gate_proj", source + "mlp.up_proj"], alternating)
            put_four_bits(target + "down", [source + "mlp.down_proj"])
            return
        rows = [weight(f"{source}self_attn.{name}_proj") for name in "qkv"]
        heads = np.concatenate(rows).reshape(-1, config.head_dim, config.hidden_size)
        put(target + "qkv", [(head, index * stride) for index, head in enumerate(heads)])
        put(target + "output", [(weight(source + "self_attn.o_proj"), 0)])
        put(target + "gate_up", _alternating(weight(source + "mlp.gate_proj"), weight(source + "mlp.up_proj")))
        put(target + "down", [(weight(source + "mlp.down_proj"), 0)])

    def rows_of_vocabulary(first: int) -> None:
        """Pack some rows of embedding and head. As a whole they would be by far the largest array in memory."""
        part = checkpoint.rows("model.embed_tokens.weight", first, _HEAD_PART)
        rows = part.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16)
        views["embedding"][first : first + _HEAD_PART] = rows
        if not config.tie_embeddings:
            part = checkpoint.rows("lm_head.weight", first, _HEAD_PART)
        head = part.to(torch.float32).contiguous().numpy()
        kernels.pack(head, Packed(views["head.codes"], views["head.scales"]), first)

    with ThreadPoolExecutor(workers) as pool:
        done = [pool.submit(layer, number) for number in range(config.num_layers)]
        norm("norm", "model.norm")
        views["head.codes"].fill(128)
        done += [pool.submit(rows_of_vocabulary, first) for first in range(0, config.vocab_size, _HEAD_PART)]
        for future in done:
            future.result()


def _alternating(gate: np.ndarray, up: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Panels of gate and up alternately, with the columns at which they are packed."""
    parts: list[tuple[np.ndarray, int]] = []
    for at in range(0, len(gate), PANEL):
        parts += [(gate[at : at + PANEL], 2 * at), (up[at : at + PANEL], 2 * at + PANEL)]
    return parts


def _alternating_order(intermediate: int) -> np.ndarray:
    """The same order, as row numbers of gate and up concatenated; -1 for zeros."""
    padded = pad(intermediate, GROUP)
    gate = np.where(np.arange(padded) < intermediate, np.arange(padded), -1)
    up = np.where(gate < 0, -1, gate + intermediate)
    return np.stack([gate.reshape(-1, PANEL), up.reshape(-1, PANEL)], 1).ravel()


def _stored_in_four_bits(checkpoint: Checkpoint, name: str) -> FourBits | None:
    return checkpoint.four_bits(name) if isinstance(checkpoint, FourBitCheckpoint) else None
