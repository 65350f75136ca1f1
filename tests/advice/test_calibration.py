"""A calibration in sentences: what limits the machine, and whether it was quiet."""

from __future__ import annotations

import pytest

from slotdeck.console.advice.calibration import Limit, Wording, bottlenecks, busy_warning, calibration_key
from tests.support.calibration import CALIBRATION


@pytest.mark.parametrize(("others", "warned"), [(0.25, False), (0.26, True)])
def test_a_busy_machine_is_told_from_a_quarter_of_a_core_on(others: float, warned: bool) -> None:
    warning = busy_warning(CALIBRATION.model_copy(update={"others": others}))
    assert (warning is not None) is warned
    assert warning is None or "0.3 cores" in warning


@pytest.mark.parametrize(
    ("overhead", "used", "bottleneck"),
    [(0.51, 10e9, "overhead is the bottleneck"), (0.5, 10e9, "memory bandwidth is the bottleneck"),
     (0.5, 9.9e9, "arithmetic is the bottleneck, so each further stream")],
)  # fmt: skip
def test_the_bottleneck_of_decode_is_overhead_then_memory_then_arithmetic(
    overhead: float, used: float, bottleneck: str
) -> None:
    calibration = CALIBRATION.model_copy(update={"overhead": overhead, "memory": Limit(used=used, most=20e9)})
    decode, _prefill = bottlenecks(calibration)
    assert bottleneck in decode
    assert f"{used / 1e9:.1f} of the 20.0 GB/s that the memory can deliver ({used / 20e9:.0%})" in decode


@pytest.mark.parametrize(
    ("used", "bottleneck"), [(50e9, "arithmetic is the bottleneck"), (49e9, "attention and small")]
)
def test_prefill_is_limited_by_arithmetic_from_half_of_its_limit_on(used: float, bottleneck: str) -> None:
    prefill = bottlenecks(CALIBRATION.model_copy(update={"arithmetic": Limit(used=used, most=100e9)}))[1]
    assert bottleneck in prefill
    assert f"{used / 1e9:.0f} of 100 billion operations per second ({used / 1e11:.0%}" in prefill


def test_a_limit_that_is_not_known_is_not_used() -> None:
    assert Limit(used=3.0, most=0.0).share == 0.0
    assert Limit(used=3.0, most=4.0).share == 0.75


def test_words_are_as_many_as_give_the_tokens() -> None:
    wording = Wording(base=32.0, per_word=1.5, per_message=6.0)
    assert (wording.words(62, fresh=True), wording.words(62, fresh=False)) == (20, 37)
    assert wording.words(5, fresh=True) == 1


def test_a_key_is_a_file_name() -> None:
    assert calibration_key("some/model x", "int8", "bf16", "cuda:0", 4) == "some_model_x-int8-kv-bf16-cuda_0-4t"
    assert CALIBRATION.key == "SmolLM2-135M-Instruct-int8-kv-bf16-cpu-2t"
