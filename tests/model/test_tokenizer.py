"""The tokenizer made from the embedded GGUF: known ids, round trips, and the oracle of `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.model

TEXTS = [
    "Hello, world!",
    "  two  spaces\tand\ttabs\n\n\nlines ",
    "I'll pay 1234567 € for it's 3.14 — don't!",
    "三匹の猫 🐈‍⬛ naïve Ünïcödé \u200b",
    "def f(x):\n    return x**2  # <|not a token|>",
    "<|im_start|>user\nhi<|im_end|>\n",
    "مرحبا <file_sep> \x00\x7f",
]


@pytest.fixture(scope="module")
def tokenizer(embedded_fp32: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded_fp32.tokenizer_folder)


def test_round_trips(tokenizer: Any) -> None:
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_known_ids(tokenizer: Any) -> None:
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert tokenizer.encode("<|im_start|>user\n") == [1, 4093, 198]
    assert len(tokenizer.encode("1234")) == 4  # digits one by one
    assert tokenizer.eos_token_id == 2
    assert len(tokenizer) == 49152


def test_equal_to_transformers_own_conversion(tokenizer: Any, embedded_path: Path) -> None:
    from transformers import AutoTokenizer

    oracle = AutoTokenizer.from_pretrained(embedded_path.parent, gguf_file=embedded_path.name)
    for text in TEXTS:
        if not any(letter.isdigit() for letter in text):  # that conversion knows no pre-tokenizer for digits
            assert tokenizer.encode(text) == oracle.encode(text)


def test_chat_template_is_that_of_the_file(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
