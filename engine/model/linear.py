"""Matrix products with the weights.

On a CPU, weights are reordered once for oneDNN. A step of 20 rows is then about 1.5 to 2 times as fast as with
`torch.nn.functional.linear`, which reorders them or misses the cache at each call. The plain product is used where that
is not available, and on GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]
"""[T, in] -> [T, out], both in the type of the weights; the input is contiguous."""

_TYPICAL_ROWS = 32
"""Batch size for which oneDNN chooses the order. At 1 to 256 rows it was measured as fast as 1 and 128, or faster."""


def make_linear(weight: torch.Tensor) -> Linear:
    """The product with ``weight`` [out, in], without bias. Keeps a reordered copy or the weight itself, never both."""
    if weight.device.type == "cpu" and packing_works(weight.dtype):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
        return functools.partial(_packed_product, packed, torch.ops.mkldnn._linear_pointwise.default)
    weight = weight.contiguous()
    return lambda x: F.linear(x, weight)


def _packed_product(packed: torch.Tensor, product: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return product(x, packed, None, "none", [], "")


@functools.cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether this torch build and CPU multiply packed weights of ``dtype``, and do so correctly."""
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 32, generator=generator).to(dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        for rows in (1, 5, 40):
            x = torch.randn(rows, 32, generator=generator).to(dtype)
            result = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "")
            if not torch.allclose(result.float(), F.linear(x.float(), weight.float()), rtol=0.02, atol=0.05):
                return False
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True
