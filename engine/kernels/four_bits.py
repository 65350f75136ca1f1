"""4-bit weights: a block of 32 weights along the depth shares a step and a minimum (fp16); a code is 0 to 15.

A weight is minimum + step x code. This is the grid of GGUF's Q4_1, and of Q4_0 with minimum = -8 x step, so weights of
these types are used as they are, without rounding them again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slotdeck.engine.kernels.packed import BLOCK, PANEL, Packed

_MAX_CODE = 15


@dataclass(frozen=True)
class FourBits:
    """Weights [rows, depth]; the depth is a multiple of 32."""

    codes: np.ndarray
    """uint8 [rows, depth], 0 to 15"""
    steps: np.ndarray
    """fp16 [rows, depth / 32]"""
    minima: np.ndarray
    """fp16 [rows, depth / 32]"""

    def values(self) -> np.ndarray:
        """The weights in fp32."""
        codes = self.codes.reshape(*self.steps.shape, BLOCK).astype(np.float32)
        values = codes * self.steps[..., None].astype(np.float32) + self.minima[..., None].astype(np.float32)
        return values.reshape(self.codes.shape)

    def arranged(self, order: np.ndarray) -> FourBits:
        """The rows in another order. ``order`` is int64 [rows]: a row number, or -1 for a row of zeros."""
        kept = order >= 0
        found = [np.zeros((len(order), part.shape[1]), part.dtype) for part in (self.codes, self.steps, self.minima)]
        for to, part in zip(found, (self.codes, self.steps, self.minima), strict=True):
            to[kept] = part[order[kept]]
        return FourBits(*found)


def joined(parts: list[FourBits]) -> FourBits:
    """Concatenate the rows of several weights."""
    return FourBits(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("codes", "steps", "minima")))


def quantised(weight: np.ndarray) -> FourBits:
    """Round ``weight`` fp32 [rows, depth] to 4 bits; the depth is padded with zeros to a multiple of 32.

    Step and minimum of a block first follow from its range. Then they follow from the line that fits the codes best, if
    that lowers the squared error. A weight that is not finite or too large for fp16 gives a step that is not finite, so
    that loading the model finds it.
    """
    rows, depth = weight.shape
    blocks = np.pad(weight, ((0, 0), (0, -depth % BLOCK))).reshape(rows, -1, BLOCK)
    with np.errstate(all="ignore"):
        low, high = blocks.min(-1), blocks.max(-1)
        first = _rounded(blocks, (high - low) / _MAX_CODE, low)
        steps, minima = first[1], first[2]
        codes = first[0].astype(np.float32)
        # The line through the points (code, weight) with the least squared error. Only the rounding of step and minimum
        # can make its error larger than the first one.
        mean_code, mean = codes.mean(-1, keepdims=True), blocks.mean(-1, keepdims=True)
        spread = np.square(codes - mean_code).sum(-1)
        slope = ((codes - mean_code) * (blocks - mean)).sum(-1) / np.where(spread > 0, spread, 1)
        second = _rounded(blocks, slope, mean[..., 0] - slope * mean_code[..., 0])
        better = _error(blocks, *second) < _error(blocks, *first)
        codes = np.where(better[..., None], second[0], first[0])
        steps, minima = np.where(better, second[1], steps), np.where(better, second[2], minima)
        steps = np.where(np.isfinite(low) & np.isfinite(high) & np.isfinite(steps), steps, np.float16(np.inf))
    return FourBits(codes.reshape(rows, -1), steps, minima)


def _rounded(blocks: np.ndarray, steps: np.ndarray, minima: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round step and minimum to fp16, and find the nearest codes for these. Returns codes, steps, minima."""
    step, minimum = steps.astype(np.float16), minima.astype(np.float16)
    wide = step[..., None].astype(np.float32)
    scaled = (blocks - minimum[..., None].astype(np.float32)) / np.where(wide > 0, wide, np.inf)
    codes = np.nan_to_num(np.rint(scaled)).clip(0, _MAX_CODE).astype(np.uint8)
    return codes, step, minimum


def _error(blocks: np.ndarray, codes: np.ndarray, steps: np.ndarray, minima: np.ndarray) -> np.ndarray:
    values = codes * steps[..., None].astype(np.float32) + minima[..., None].astype(np.float32)
    return np.square(values - blocks).sum(-1)


def place(weights: FourBits, into: Packed) -> None:
    """Fill all columns of ``into``: the rows of ``weights`` become its first columns, and zeros the others.

    Raises ValueError if they do not fit.
    """
    panels, groups, _ = into.codes.shape
    rows, blocks = weights.steps.shape
    if rows > panels * PANEL or blocks > groups or into.bits != 4:
        raise ValueError(f"weights {weights.codes.shape} do not fit into {into.columns} x {into.depth} of 4 bits")

    def padded(part: np.ndarray) -> np.ndarray:
        """[panels, 16, groups, values of a block]"""
        part = part.reshape(rows, blocks, -1)
        part = np.pad(part, ((0, panels * PANEL - rows), (0, groups - blocks), (0, 0)))
        return part.reshape(panels, PANEL, groups, -1)

    codes = padded(weights.codes).reshape(panels, PANEL, groups, BLOCK // 8, 2, 4)
    halves = codes[..., 0, :] | codes[..., 1, :] << 4  # [panels, 16, groups, 4, 4]
    at = BLOCK * PANEL // 2
    into.codes[:, :, :at] = halves.transpose(0, 2, 3, 1, 4).reshape(panels, groups, at)
    for part in (weights.steps, weights.minima):
        line = padded(part.view(np.uint16))[..., 0].transpose(0, 2, 1)  # [panels, groups, 16]
        into.codes[:, :, at : at + 2 * PANEL] = np.ascontiguousarray(line).view(np.uint8)
        at += 2 * PANEL
