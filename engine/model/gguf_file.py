"""A GGUF file as a checkpoint: its metadata, and its tensors by Hugging Face names, dequantised when they are read.

The `gguf` package reads and dequantises. We add two things: long string arrays (vocabulary, merges) are skipped and
decoded only when a tokenizer must be built, and llama.cpp's row order of Q and K is undone.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType
from gguf.quants import dequantize

from slotdeck.engine.kernels.four_bits import FourBits
from slotdeck.engine.kernels.packed import BLOCK
from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.errors import ModelError
from slotdeck.engine.model.llama.config import config_from_gguf
from slotdeck.engine.model.llama.tensors import hugging_face_name, interleaved_heads

_FOUR_BITS = {GGMLQuantizationType.Q4_0: 2, GGMLQuantizationType.Q4_1: 4}
"""Types with the grid of 4-bit weights, and the number of bytes of a block before its codes."""
_PLAIN_TYPES = {GGMLQuantizationType.F32, GGMLQuantizationType.F16}


class _Reader(GGUFReader):
    """A GGUFReader that keeps an array as one span of bytes: a vocabulary takes milliseconds instead of seconds."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if GGUFValueType(raw_type) != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_type, length = struct.unpack_from(f"{self._order}IQ", self.data, orig_offs)
        kind, start = GGUFValueType(item_type), orig_offs + 12
        if kind in self.gguf_scalar_to_np:
            values = self._get(start, self.gguf_scalar_to_np[kind], length)
            return 12 + values.nbytes, [values], [0], [GGUFValueType.ARRAY, kind]
        if kind != GGUFValueType.STRING:
            return super()._get_field_parts(orig_offs, raw_type)
        read_length, buffer, end = struct.Struct(f"{self._order}Q").unpack_from, memoryview(self.data), start
        for _ in range(length):
            end += 8 + read_length(buffer, end)[0]
        return end - orig_offs, [self.data[start:end]], [0], [GGUFValueType.ARRAY, kind]

    @property
    def _order(self) -> str:
        """Byte order of the file, in the notation of `struct`."""
        return "<" if (sys.byteorder == "little") != (self.byte_order == "S") else ">"

    def span(self, name: str) -> bytes:
        """The raw bytes of a field's value; empty if there is no such field."""
        field = self.fields.get(name)
        return b"" if field is None else b"".join(bytes(field.parts[index]) for index in field.data)

    def strings(self, name: str) -> list[str]:
        """Decode an array of strings; empty if there is no such field."""
        span, offset, result = self.span(name), 0, []
        read_length = struct.Struct(f"{self._order}Q").unpack_from
        while offset < len(span):
            start = offset + 8
            offset = start + read_length(span, offset)[0]
            result.append(span[start:offset].decode("utf-8", "surrogateescape"))
        return result

    def numbers(self, name: str) -> list[int]:
        """An array of numbers; empty if there is no such field."""
        field = self.fields.get(name)
        return [] if field is None else [int(value) for value in field.parts[field.data[0]].tolist()]


class GGUFCheckpoint:
    """The tensors of a GGUF file of architecture llama, by their Hugging Face names.

    Raises ModelError if the file is damaged or has another architecture.
    """

    def __init__(self, path: Path, id: str) -> None:
        self.path = path
        try:
            self.reader = _Reader(path)
        except (ValueError, KeyError, IndexError, struct.error, OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{path} is not a readable GGUF file ({error}). Fetch it again.") from error
        scalars = {
            name: field.contents()
            for name, field in self.reader.fields.items()
            if field.types and field.types[0] != GGUFValueType.ARRAY
        }
        tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        if scalars.get("general.architecture") == "llama" and "token_embd.weight" not in tensors:
            raise ModelError(f"{path.name}: the file holds no token_embd.weight; it is not a whole model.")
        shape = tensors["token_embd.weight"].shape if "token_embd.weight" in tensors else (0, 0)
        self.metadata = scalars
        self.config: ModelConfig = config_from_gguf(
            scalars, id, vocab_size=int(shape[1]), tied="output.weight" not in tensors
        )
        self._tensors = {hugging_face_name(name): tensor for name, tensor in tensors.items()}

    @property
    def files(self) -> list[Path]:
        """The one file. If it changes, it is another model."""
        return [self.path]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, rows first as torch has them."""
        return {name: tuple(int(size) for size in reversed(t.shape)) for name, t in self._tensors.items()}

    @property
    def largest_tensor(self) -> int:
        """Number of values in the largest tensor, which is held in fp32 for a moment while it is converted."""
        return max(int(tensor.n_elements) for tensor in self._tensors.values())

    @property
    def in_four_bits(self) -> bool:
        """Whether all products of the layers are stored in 4 bits."""
        products = [tensor for name, tensor in self._tensors.items() if name.endswith("proj.weight")]
        return all(tensor.tensor_type in _FOUR_BITS for tensor in products)

    def get(self, name: str) -> torch.Tensor:
        """The tensor in fp32, or in fp16 if it is stored so. Safe to call from several threads."""
        result = self._dequantised(name, slice(None))
        heads = interleaved_heads(name, self.config)
        return result if heads is None else result[_rotate_half_order(len(result), heads)]

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """``count`` rows from ``first`` on (fewer at the end), without converting the others. Not for Q and K."""
        return self._dequantised(name, slice(first, first + count))

    def four_bits(self, name: str) -> FourBits | None:
        """The tensor in 4 bits exactly as it is stored; None if it is stored in another type."""
        tensor = self._tensors[name]
        if tensor.tensor_type not in _FOUR_BITS:
            return None
        # A block is the step, in Q4_1 also the minimum, and 16 bytes of two codes. Low halves are the first 16 values.
        head = _FOUR_BITS[tensor.tensor_type]
        blocks = np.asarray(tensor.data).reshape(len(tensor.data), -1, head + BLOCK // 2)
        floats = np.ascontiguousarray(blocks[..., :head]).view("<f2")
        steps = floats[..., 0].astype(np.float16)
        minima = floats[..., 1].astype(np.float16) if head == 4 else steps * np.float16(-8)
        halves = blocks[..., head:]
        codes = np.concatenate([halves & 15, halves >> 4], -1).reshape(len(blocks), -1)
        found = FourBits(codes, steps, minima)
        heads = interleaved_heads(name, self.config)
        return found if heads is None else found.arranged(_rotate_half_order(len(codes), heads))

    def _dequantised(self, name: str, rows: slice) -> torch.Tensor:
        tensor = self._tensors[name]
        kind = tensor.tensor_type
        try:
            values = tensor.data[rows] if kind in _PLAIN_TYPES else dequantize(tensor.data[rows], kind)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path.name}: {name} is stored as {kind.name}, which cannot be read."
                " Use a file in Q8_0, Q6_K, Q5_K, Q4_K, Q4_0, Q4_1, F16, BF16 or F32."
            ) from error
        return torch.from_numpy(np.array(values) if kind in _PLAIN_TYPES else values)

    def rope_factors(self) -> torch.Tensor | None:
        """Divisors of the rotary frequencies, fp32 [head_dim / 2], or None. llama.cpp stores llama3 scaling so."""
        return self.get("rope_freqs.weight").float() if "rope_freqs.weight" in self._tensors else None


def _rotate_half_order(rows: int, heads: int) -> np.ndarray:
    """The order of rows that turns llama.cpp's interleaved pairs of Q and K into halves, as rotate-half needs them."""
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).transpose(0, 2, 1).reshape(-1)
