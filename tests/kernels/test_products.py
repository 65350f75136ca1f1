"""Packing and products: exact in integers, whatever the sizes and values, and a row never depends on its company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slotdeck.engine.kernels.four_bits import FourBits, place, quantised
from slotdeck.engine.kernels.library import Kernels
from slotdeck.engine.kernels.packed import empty, pad
from tests.kernels.library import EXAMPLES
from tests.kernels.twins import (
    pack,
    quantise_rows,
    quantise_weights,
    rounded_rows,
    rounded_weights,
    undecided,
    unpack,
    unpack_four_bits,
)

VALUES = ["normal", "one large", "extremes", "tiny", "zero", "equal"]


def values(kind: str, rows: int, depth: int, generator: torch.Generator) -> torch.Tensor:
    x = torch.randn(rows, depth, generator=generator)
    if kind == "one large":
        x[:, ::7] *= 1e4
    if kind == "extremes":  # every code is 127 or -127: sums are as large as they can be
        return torch.where(x > 0, 3.0, -3.0)
    if kind == "tiny":
        return x * 1e-36
    if kind == "zero":
        return torch.zeros_like(x)
    if kind == "equal":
        return torch.full_like(x, -1e15)
    return x


def run(kernels: Kernels, x: torch.Tensor, weight: torch.Tensor, bits: int = 8) -> torch.Tensor:
    padded = torch.zeros(len(x), pad(x.shape[1], 64))
    padded[:, : x.shape[1]] = x
    out = torch.from_numpy(kernels.product(padded.numpy(), pack(kernels, weight, bits)))
    assert not out[:, len(weight) :].any()
    return out[:, : len(weight)]


@settings(max_examples=EXAMPLES)
@given(
    sizes=st.tuples(st.integers(1, 120), st.integers(1, 400), st.integers(1, 200)),
    kinds=st.tuples(st.sampled_from(VALUES), st.sampled_from(VALUES)),
    seed=st.integers(0, 1000),
)
def test_product_equals_its_twin(
    kernels: Kernels, sizes: tuple[int, int, int], kinds: tuple[str, str], seed: int
) -> None:
    rows, depth, columns = sizes
    generator = torch.Generator().manual_seed(seed)
    x, weight = values(kinds[0], rows, depth, generator), values(kinds[1], columns, depth, generator)
    rounded_x, rounded_w = rounded_rows(x).double(), rounded_weights(weight).double()
    wanted = rounded_x @ rounded_w.T
    size = rounded_x.abs() @ rounded_w.abs().T
    difference = (run(kernels, x, weight).double() - wanted).abs()
    assert bool((difference <= size * 2e-6 + 1e-37)[~undecided(x)].all())


@settings(max_examples=EXAMPLES)
@given(
    sizes=st.tuples(st.integers(1, 120), st.integers(1, 400), st.integers(1, 200)),
    kinds=st.tuples(st.sampled_from(VALUES), st.sampled_from(VALUES)),
    seed=st.integers(0, 1000),
)
def test_product_of_4_bits_equals_its_twin(
    kernels: Kernels, sizes: tuple[int, int, int], kinds: tuple[str, str], seed: int
) -> None:
    rows, depth, columns = sizes
    generator = torch.Generator().manual_seed(seed)
    x, weight = values(kinds[0], rows, depth, generator), values(kinds[1], columns, depth, generator)
    if kinds[1] == "equal":
        weight /= 1e12  # beyond the range of fp16 otherwise
    rounded = quantised(weight.numpy())
    values_of, sizes_of = torch.from_numpy(rounded.values()).double(), rounded.steps.astype(np.float64) * 15
    sizes_of = torch.from_numpy((sizes_of + np.abs(rounded.minima)).repeat(32, 1))
    rounded_x = rounded_rows(x).double()[:, : values_of.shape[1]]
    difference = (run(kernels, x, weight, 4).double() - rounded_x @ values_of.T).abs()
    assert bool((difference <= rounded_x.abs() @ sizes_of.T * 2e-6 + 1e-37)[~undecided(x)].all())


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_of_4_bits_do_not_saturate(kernels: Kernels, sign: int) -> None:
    rows, depth, columns = 13, 192, 64
    weights = FourBits(
        np.full((columns, depth), 15, np.uint8),
        np.ones((columns, 6), np.float16),
        np.full((columns, 6), -7, np.float16),
    )
    packed = empty(columns, depth, 4)
    place(weights, packed)
    out = kernels.product(np.full((rows, depth), 127 * sign, np.float32), packed)
    assert np.array_equal(out, np.full((rows, columns), 127 * sign * 8 * depth, np.float32))


def test_weights_of_4_bits_are_placed_where_the_kernels_read_them(kernels: Kernels) -> None:
    weight = torch.randn(70, 150, generator=torch.Generator().manual_seed(1))
    rounded = quantised(weight.numpy())
    unpacked = unpack_four_bits(pack(kernels, weight, 4))
    torch.testing.assert_close(unpacked[:70, :160], torch.from_numpy(rounded.values()), rtol=0, atol=0)
    assert not unpacked[70:].any()
    assert not unpacked[:, 160:].any()
    with pytest.raises(ValueError, match="do not fit"):
        place(rounded, empty(64, 150, 4))


def test_4_bits_round_to_the_nearest_of_16_levels_and_keep_what_is_on_the_grid() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(70, 160, generator=generator)
    error = (torch.from_numpy(quantised(weight.numpy()).values()) - weight).view(70, 5, 32)
    blocks = weight.view(70, 5, 32)
    steps = (blocks.amax(-1) - blocks.amin(-1)) / 15
    assert float((error.square().mean(-1).sqrt() / steps).max()) < 0.4  # even rounding errors: 0.29
    codes = torch.randint(0, 16, (20, 64), generator=generator)
    codes[:, ::32], codes[:, 1::32] = 0, 15
    grid = (codes * 0.0625 - 0.5).numpy()
    assert np.array_equal(quantised(grid).values(), grid)


def test_weights_of_4_bits_that_are_not_finite_are_found(kernels: Kernels) -> None:
    for bad in (float("nan"), float("inf"), 1e9):
        weight = torch.randn(32, 64)
        weight[3, 5] = bad
        assert not torch.isfinite(run(kernels, torch.ones(1, 64), weight, 4)[0, 3])


def test_weights_are_packed_to_the_twin_s_codes(kernels: Kernels) -> None:
    weight = torch.randn(70, 150, generator=torch.Generator().manual_seed(1))
    packed = pack(kernels, weight)
    unpacked = unpack(packed)
    torch.testing.assert_close(unpacked[:70], rounded_weights(weight), rtol=0, atol=0)
    assert not unpacked[70:].any()
    codes, _ = quantise_weights(weight)
    assert int(codes.abs().max()) <= 127
    # Within half a step of the grid, whose steps are the largest value over 127 (scales are rounded up to bf16).
    largest = weight.abs().max()
    assert float((unpacked[:70, :150] - weight).abs().max()) <= float(largest) / 127 * 0.51


def test_a_row_is_bitwise_the_same_alone_and_in_company(kernels: Kernels) -> None:
    generator = torch.Generator().manual_seed(2)
    x, weight = torch.randn(101, 192, generator=generator), torch.randn(96, 192, generator=generator)
    for bits in (8, 4):
        together = run(kernels, x, weight, bits)
        for rows in (1, 2, 3, 4, 5, 6, 7, 13, 47, 48, 49, 100):
            assert torch.equal(run(kernels, x[:rows], weight, bits), together[:rows])
            assert torch.equal(run(kernels, x[rows:], weight, bits), together[rows:])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_reaches_every_result_of_its_row_alone(kernels: Kernels, bad: float) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(9, 128, generator=generator), torch.randn(64, 128, generator=generator)
    clean = [run(kernels, x, weight, bits) for bits in (8, 4)]
    x[4, 70] = bad
    kept = [i for i in range(9) if i != 4]
    for bits, before in zip((8, 4), clean, strict=True):
        out = run(kernels, x, weight, bits)
        assert not torch.isfinite(out[4]).any()
        assert torch.equal(out[kept], before[kept])


def test_weights_that_are_not_finite_are_found(kernels: Kernels) -> None:
    weight = torch.randn(32, 64)
    weight[3, 5] = float("nan")
    assert not torch.isfinite(run(kernels, torch.ones(1, 64), weight)[0, 3])


def test_codes_of_rows_round_to_even_and_stay_within_127() -> None:
    codes, scales = quantise_rows(torch.tensor([[127.0, 0.5, 1.5, 2.5, -126.5]]))
    assert codes[0, 0, :5].tolist() == [127, 0, 2, 2, -126]
    assert float(scales[0, 0, 0]) == 1


def test_parts_are_packed_side_by_side(kernels: Kernels) -> None:
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(4))
    into = empty(48, 64)
    for first in (0, 16, 32):
        kernels.pack(weight[first : first + 16].numpy(), into, first)
    whole = pack(kernels, weight)
    assert np.array_equal(into.codes, whole.codes)
    assert np.array_equal(into.scales, whole.scales)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.pack(weight.numpy(), into, 32)


def test_instruction_sets_agree(kernels: Kernels) -> None:
    generator = torch.Generator().manual_seed(5)
    x, weight = torch.randn(23, 320, generator=generator), torch.randn(64, 320, generator=generator)
    portable = Kernels(1, "portable")
    try:
        for bits in (8, 4):
            one, other = run(kernels, x, weight, bits), run(portable, x, weight, bits)
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    finally:
        portable.close()
