"""What a smaller type of the KV pool costs: the likelihood of prose under the embedded model, each against fp32.

``python -m tests.model.test_kv_quality`` prints the table of engine/README.md.
"""

from __future__ import annotations

import pytest
import torch

from slotdeck.engine.model.kv_store import KV_DTYPES
from slotdeck.engine.model.load import LoadedModel, load_model
from tests.support.prose import choices, divergence, loss, predictions, prose


@pytest.mark.model
def test_smaller_types_cost_little_quality(embedded_fp32: LoadedModel) -> None:
    ids = prose(embedded_fp32)
    assert len(ids) > 550
    exact = predictions(embedded_fp32, ids, "fp32")
    assert 2 < loss(exact, ids) < 4  # the model reads it as prose
    for kv_dtype, nats, divergent in (("fp16", 0.005, 1e-4), ("bf16", 0.02, 0.005), ("int8", 0.05, 0.03)):
        found = predictions(embedded_fp32, ids, kv_dtype)
        assert abs(loss(found, ids) - loss(exact, ids)) < nats, kv_dtype
        assert divergence(found, exact) < divergent, kv_dtype


def main() -> None:
    torch.set_num_threads(2)
    model = load_model("smollm2", weights="fp32", device="cpu")
    ids = prose(model)
    exact = predictions(model, ids, "fp32")
    print(f"{len(ids)} tokens of prose, {model.id}, fp32 weights")
    for kv_dtype in KV_DTYPES:
        found = predictions(model, ids, kv_dtype)
        difference = loss(found, ids) - loss(exact, ids)
        print(
            f"| {kv_dtype} | {model.config.kv_bytes_per_token(kv_dtype):,} |"
            f" {model.config.scale_bytes_per_token(kv_dtype):,} | {loss(found, ids):.4f} | {difference:+.4f} |"
            f" {divergence(found, exact):.5f} | {choices(found, exact):.1%} |"
        )


if __name__ == "__main__":
    main()
