"""How well a model predicts a text: likelihood and divergence, and the text itself."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer

from slotdeck.engine.model.attention_backend import Span
from slotdeck.engine.model.kv_store import KV_DTYPES, KVStore
from slotdeck.engine.model.load import LoadedModel
from slotdeck.engine.model.step_decoder import Batch
from slotdeck.engine.settings import BLOCK_SIZE

PROSE = """\
The mill had stood beside the river for longer than anyone in the village could remember. In spring, when the snow came
down from the hills as water, its wheel turned so fast that the whole house shook, and the miller tied his cups to the
shelf with string. In August there was often too little water to turn it at all, and then he sat on the wall with his
hat over his eyes and waited for rain like everybody else. He had learned the trade from his mother, who had learned it
from an uncle, and none of them had ever written anything down. They knew from the sound of the stones how fine the
flour would be, and from the smell of a sack whether the grain had been dry when it was cut.

One evening a young woman came up the path with a notebook under her arm. She had been sent by the district to record
how such places worked before the last of them closed. She asked how many turns the wheel made in a minute, how much
grain the stones could take in an hour, and what a new belt would cost. The miller answered as well as he could, but he
kept looking past her at the sky. When she had filled four pages he asked whether she would like to see the stones
themselves, and she put the pencil away and followed him up the ladder.

It was almost dark in the upper room. He lit a lamp, took her hand, and laid it flat against the casing. "Now wait," he
said. At first she felt nothing but cold wood. Then, very slowly, as he opened the gate a little, a trembling began
under her palm, first uneven and then steady, until it seemed to come from the floor, from the walls and from the river
below them. "That is eleven sacks an hour," he said. "If it were twelve, you would feel it in your teeth." She laughed,
and then she tried it with her other hand, and closed her eyes.

On the way home she thought about her four pages. Everything in them was correct, and a careful reader could have built
a mill from them, but it would not have been this one. The next morning she went back, without the notebook, and asked
whether she might stay until the end of the season. The miller considered this for some time. There was a bed in the
room behind the sacks, he said, if she did not mind the noise, and she would have to learn to tie down the cups. By the
end of September she could tell nine sacks from ten, and when the first frost came she heard, before he did, that one
of the stones had begun to run dry.
"""


def predictions(model: LoadedModel, token_ids: list[int], kv_dtype: str, chunk: int = 64) -> torch.Tensor:
    """Log-probabilities of the token after each token, fp32 [T, vocab], computed in chunks of ``chunk`` tokens."""
    blocks = list(range(-(-len(token_ids) // BLOCK_SIZE)))
    store = KVStore(model.config, len(blocks), KV_DTYPES[kv_dtype], model.device)
    parts = []
    with torch.inference_mode():
        for start in range(0, len(token_ids), chunk):
            part = token_ids[start : start + chunk]
            positions = range(start, start + len(part))
            spans = [Span(start, len(part), blocks)]
            batch = Batch(
                token_ids=part,
                positions=positions,
                slot_mapping=positions,
                attention_metadata=model.decoder.build_attention_metadata(spans, positions, store),
                logit_rows=range(len(part)),
            )
            output = model.decoder.forward(batch, store)
            assert output.finite.all()
            parts.append(output.logits.log_softmax(-1))
    return torch.cat(parts)


def loss(found: torch.Tensor, token_ids: list[int]) -> float:
    """Mean negative log-likelihood, in nats per token, of each token given those before it."""
    return float(torch.nn.functional.nll_loss(found[:-1], torch.tensor(token_ids[1:])))


def divergence(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Mean Kullback-Leibler divergence from the exact predictions, in nats per token; 0 only if they are equal."""
    return float(torch.nn.functional.kl_div(found, exact, reduction="batchmean", log_target=True))


def choices(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Share of tokens after which another next token is the likeliest."""
    return float((found.argmax(-1) != exact.argmax(-1)).float().mean())


def prose(model: LoadedModel) -> list[int]:
    tokenizer = Tokenizer.from_file(str(model.tokenizer_folder / "tokenizer.json"))
    return tokenizer.encode(PROSE, add_special_tokens=False).ids[:600]
