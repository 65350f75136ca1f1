"""A made-up calibration for tests that simulate, with step times like those of a small CPU machine."""

from __future__ import annotations

from slotdeck.console.advice.calibration import Calibration, Limit, Wording
from slotdeck.console.advice.step_model import StepModel
from slotdeck.console.advice.traffic import Edge

PRICES = StepModel(
    step=0.006,
    decode=0.002,
    prefill_token=0.0008,
    prefill_row=0.002,
    first_token=0.0005,
    decode_context=2e-6,
    prefill_context=1e-7,
    spread=(0.9, 1.0, 1.1, 1.5),
    prefill_spread=(0.95, 1.0, 1.2),
    samples=1000,
)

CALIBRATION = Calibration(
    measured=1_790_000_000.0,
    machine={"cpu": "made up", "usable_cores": 2, "logical_cores": 2, "memory_bytes": 1 << 33, "system": "Linux",
             "python": "3.11", "torch": None},
    model="SmolLM2-135M-Instruct",
    weights="int8",
    kv_dtype="bf16",
    device="cpu",
    threads=2,
    kernels="native avx2",
    weight_bytes=195_446_016,
    kv_bytes_per_token=23_040,
    prefill_chunk=64,
    prefill_per_second=1100.0,
    decode_per_second=120.0,
    memory=Limit(used=16e9, most=20e9),
    arithmetic=Limit(used=2.4e11, most=3e11),
    overhead=0.05,
    kv_copy_bytes_per_second=4e9,
    alone=PRICES,
    served=PRICES,
    edge=Edge(),
    wording=Wording(base=32.0, per_word=1.1, per_message=6.0),
)  # fmt: skip
