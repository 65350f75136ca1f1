"""Capacity: every worked example that the product is built on, to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotdeck.console.advice.capacity import Capacity, CapacityError, Load, Memory, ModelFacts, Speed, context_for
from slotdeck.console.advice.model_file import facts_from_config
from slotdeck.console.advice.units import about, bytes_text
from slotdeck.engine.core.kv_memory import KV_VALUE_BYTES, tokens_that_fit
from tests.support.model_facts import EIGHT_B, QWEN3_8B, SMOLLM2


def test_one_token_and_one_conversation_to_the_byte() -> None:
    assert EIGHT_B.token_bytes("bf16") == 147_456 == 144 * 1024
    capacity = Capacity(EIGHT_B, Memory(24_000_000_000, True, 0.92), "bf16", 8192)
    assert capacity.conversation_bytes == 1_207_959_552
    assert 5 * capacity.context == 40_960
    assert 5 * capacity.conversation_bytes == pytest.approx(6e9, rel=0.01)


def test_six_gigabytes_hold_about_five_conversations_and_say_how_nearly() -> None:
    tokens = tokens_that_fit(6_000_000_000, EIGHT_B.token_bytes("bf16"))
    assert about(tokens / 8192) == "≈5 (4.97)"
    capacity = Capacity(EIGHT_B, Memory(22_000_000_000, False), "bf16", 8192)
    assert capacity.cache_bytes == 6_000_000_000
    assert about(capacity.conversations) == "≈5 (4.97)"
    assert int(capacity.conversations) == 4


def test_a_24_gb_card_with_an_8b_model_in_16_bit() -> None:
    capacity = Capacity(EIGHT_B, Memory(24_000_000_000, True, 0.92), "bf16", 8192)
    assert capacity.cache_bytes == pytest.approx(6e9, rel=0.02)
    assert round(capacity.conversations) == 5
    assert capacity.with_kv_dtype("int8").conversations > 9
    assert replace(capacity, context=4096).conversations == pytest.approx(2 * capacity.conversations)


def test_the_embedded_model_in_every_type_scales_apart() -> None:
    assert [SMOLLM2.kv_bytes(kind) for kind in ("fp32", "bf16", "fp16", "int8")] == [46_080, 23_040, 23_040, 11_520]
    assert [SMOLLM2.scale_bytes(kind) for kind in ("fp32", "bf16", "int8")] == [0, 0, 720]
    assert SMOLLM2.token_bytes("int8") == 12_240


@pytest.mark.parametrize(
    ("users", "generate", "turn", "in_flight"),
    [(20, 12, 90, 2.6667), (20, 12, 12, 20), (20, 12, 0, 20), (20, 7, 47, 2.98), (5, 100, 90, 5), (2, 1, 1000, 0.002)],
)
def test_in_flight_not_logged_in(users: int, generate: float, turn: float, in_flight: float) -> None:
    assert Load(users, generate, turn).in_flight == pytest.approx(in_flight, rel=1e-3)


def test_a_turn_is_reading_and_writing() -> None:
    assert Speed(prefill=1500, decode=100).turn_seconds(6000, 200) == pytest.approx(6.0)
    assert context_for(6000, 200) == 6400
    assert context_for(1, 1) == 256


@pytest.mark.parametrize(
    ("value", "shown"),
    [(5, "5"), (5.0, "5"), (4.967, "≈5 (4.97)"), (4.999, "≈5 (4.999)"), (0.31, "≈0 (0.31)"), (6.04, "≈6 (6.04)")],
)
def test_a_number_of_conversations_is_never_rounded_silently(value: float, shown: str) -> None:
    assert about(value) == shown


@given(
    st.builds(ModelFacts, st.just("m"), st.integers(1, 80), st.integers(1, 64), st.sampled_from([64, 128])),
    st.sampled_from(sorted(KV_VALUE_BYTES)), st.integers(0, 1 << 40), st.integers(64, 1 << 17),
)  # fmt: skip
def test_what_is_said_to_fit_fits(model: ModelFacts, kind: str, memory: int, context: int) -> None:
    capacity = Capacity(replace(model, weight_bytes=1 << 30), Memory(memory, False), kind, context)
    assert capacity.cache_tokens % 16 == 0
    assert capacity.cache_tokens * capacity.model.token_bytes(kind) <= max(0, capacity.cache_bytes)
    if capacity.cache_bytes > 0:
        assert (capacity.cache_tokens + 16) * capacity.model.token_bytes(kind) > capacity.cache_bytes
    whole = int(capacity.conversations)
    assert whole * context <= capacity.cache_tokens < (whole + 1) * context


def test_bytes_in_words() -> None:
    assert [bytes_text(n) for n in (0, 147_456, 1_207_959_552, 16_381_470_720, -2e9)] == [
        "0 B", "147 kB", "1.21 GB", "16.4 GB", "-2 GB",
    ]  # fmt: skip


@pytest.mark.parametrize("utilisation", [0, -1, 1.01])
def test_a_share_of_memory_above_all_of_it_is_refused(utilisation: float) -> None:
    with pytest.raises(CapacityError, match="utilisation"):
        Memory(1, True, utilisation)


# ------------------------------------------------------------------ config.json


def test_a_config_of_a_family_that_is_not_served_gives_its_numbers() -> None:
    facts = facts_from_config(QWEN3_8B, "Qwen3-8B")
    assert (facts.layers, facts.kv_heads, facts.head_dim, facts.trained_context) == (36, 8, 128, 40_960)
    assert facts.token_bytes("bf16") == 147_456
    assert facts.parameters == pytest.approx(8.19e9, rel=0.001)
    assert facts.weight_bytes == 2 * (facts.parameters or 0)
    assert facts.notes == ()


def test_packed_weights_of_the_embedded_model_are_as_large_as_the_engine_says() -> None:
    config = {
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576,
        "intermediate_size": 1536, "vocab_size": 49_152, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    }  # fmt: skip
    facts = facts_from_config(config, "SmolLM2-135M-Instruct", "int8")
    assert facts.parameters == 134_515_008
    assert facts.weight_bytes == pytest.approx(195_446_016, rel=0.001)  # what `slotdeck model info` says
    assert facts.with_weights("int4").weight_bytes == pytest.approx(152_315_136, rel=0.001)
    assert facts.with_weights("fp32").weight_bytes == 4 * 134_515_008
    assert facts.with_weights("int4").weight_bytes == pytest.approx(152_315_136, rel=0.001)


def test_a_name_from_a_file_cannot_move_the_cursor() -> None:
    name = facts_from_config(QWEN3_8B, "\x1b[2Jevil\x9b1m\r" + "x" * 300).name
    assert name.isprintable()
    assert len(name) == 100


def test_the_language_part_of_a_config_with_pictures_counts() -> None:
    assert facts_from_config({"text_config": QWEN3_8B, "vision_config": {}}, "VL").layers == 36


def test_layers_that_keep_nothing_are_not_counted_and_that_is_said() -> None:
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 9
    facts = facts_from_config(QWEN3_8B | {"layer_types": kinds}, "hybrid")
    assert facts.layers == 9
    assert "Only 9 of 36" in facts.notes[0]


@pytest.mark.parametrize("extra", [{"num_experts": 128}, {"quantization_config": {"bits": 4}}])
def test_weights_that_the_file_does_not_tell_are_unknown_not_guessed(extra: dict[str, object]) -> None:
    facts = facts_from_config(QWEN3_8B | extra, "other")
    assert facts.weight_bytes is None
    assert "--weights-size" in facts.notes[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": None}, "lacks 'num_hidden_layers'"),
        ({"num_hidden_layers": "many"}, "cannot be read"),
        ({"num_attention_heads": 0}, "cannot be read"),
        ({"kv_lora_rank": 512}, "latent attention"),
    ],
)
def test_a_config_that_cannot_be_read_says_what_to_do(change: dict[str, object], words: str) -> None:
    with pytest.raises(CapacityError, match=words) as raised:
        facts_from_config(QWEN3_8B | change, "config.json")
    assert "--layers" in str(raised.value)
