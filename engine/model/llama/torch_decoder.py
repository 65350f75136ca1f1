"""The Llama decoder in torch: plain functions over fused weights.

For small models a tree of modules would cost more time than the matrix products. So a step is one loop over the layers
with about twenty tensor operations each. Q, K and V are one product; gate and up are another. Residuals, norms and the
rotary embedding are computed in fp32, whatever the type of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from slotdeck.engine.model.attention_backend import AttentionBackend, Span
from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.kv_store import KVStore
from slotdeck.engine.model.llama.rotary import rotary, rotate
from slotdeck.engine.model.llama.weights import DecoderWeights
from slotdeck.engine.model.step_decoder import Batch, DecoderOutput


class TorchDecoder:
    """Computes flat batches in torch; see :class:`slotdeck.engine.model.step_decoder.StepDecoder`."""

    samples = False

    def __init__(self, config: ModelConfig, weights: DecoderWeights, attention: AttentionBackend) -> None:
        self.config = config
        self.weights = weights
        self.kv_dtype = weights.dtype
        self._attention = attention

    @property
    def backend_name(self) -> str:
        return "torch"

    def set_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def allocate_kv(self, num_blocks: int, dtype: torch.dtype) -> KVStore:
        return self._attention.allocate(self.config, num_blocks, dtype)

    def build_attention_metadata(self, spans: Sequence[Span], slot_mapping: Sequence[int], store: KVStore) -> object:
        return self._attention.build_metadata(spans, slot_mapping, store)

    def forward(self, batch: Batch, store: KVStore) -> DecoderOutput:
        config, weights, attention = self.config, self.weights, self._attention
        hidden_size, eps, dtype = config.hidden_size, config.rms_norm_eps, weights.dtype
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        intermediate, metadata = config.intermediate_size, batch.attention_metadata
        tokens = len(batch.token_ids)
        cosine, sine = rotary(self._on_device(batch.positions), weights.inverse_frequencies)
        hidden = F.embedding(self._on_device(batch.token_ids), weights.embedding).float()
        attended = torch.empty(tokens, heads * head_dim, dtype=dtype, device=hidden.device)
        attended_by_head = attended.view(tokens, heads, head_dim)
        shape = (hidden_size,)
        for number, layer in enumerate(weights.layers):
            normed = F.rms_norm(hidden, shape, layer.input_norm, eps).to(dtype)
            qkv = layer.qkv(normed).view(tokens, heads + 2 * kv_heads, head_dim)
            rotated = rotate(qkv[:, : heads + kv_heads].float(), cosine, sine)
            attention.write(store, number, metadata, rotated[:, heads:], qkv[:, heads + kv_heads :])
            attention.attend(store, number, metadata, rotated[:, :heads], attended_by_head)
            hidden += layer.output(attended)
            normed = F.rms_norm(hidden, shape, layer.mlp_norm, eps).to(dtype)
            gate_up = layer.gate_up(normed)
            hidden += layer.down(F.silu(gate_up[:, :intermediate]).mul_(gate_up[:, intermediate:]))
        rows = hidden.index_select(0, self._on_device(batch.logit_rows))
        logits = weights.head(F.rms_norm(rows, shape, weights.norm, eps).to(dtype))
        # A value that is not finite stays in the residual of its token, so checking the last residual is enough.
        return DecoderOutput(logits.float(), torch.isfinite(hidden).all(-1).cpu().numpy(), [], [])

    def part_seconds(self) -> dict[str, float]:
        return {}

    def _on_device(self, numbers: Sequence[int]) -> torch.Tensor:
        """int64 [len(numbers)]. Going through numpy is several times as fast as torch.tensor."""
        return torch.from_numpy(np.array(numbers, np.int64)).to(self.weights.device)
