"""Loading: what is refused, and that the sentence says what to do. No test here touches the network."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import quantize
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, MistralConfig

from slotdeck.engine.__main__ import describe_model, measure_steps, serve
from slotdeck.engine.model import load as load_module
from slotdeck.engine.model.config import ModelConfig, RopeScaling
from slotdeck.engine.model.errors import ModelError, UsageError
from slotdeck.engine.model.four_bit_checkpoint import FourBitCheckpoint
from slotdeck.engine.model.hardware import choose_device, choose_dtype
from slotdeck.engine.model.linear import packing_works
from slotdeck.engine.model.load import find_model, load_model, memory_beside
from slotdeck.engine.model.runner import Runner
from slotdeck.engine.settings import StartSettings
from tests.support.tiny_models import (
    Driver,
    assert_greedy,
    make_request,
    random_prompt,
    save_tiny_llama,
    save_tiny_mistral,
)

MISTRAL = {"architectures": ["MistralForCausalLM"]}


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not ...}))


def refusal(source: Path | str, **options: str) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(str(source), **({"weights": "fp32", "device": "cpu"} | options))
    return str(caught.value)


def test_worked_example_of_kv_bytes() -> None:
    config = ModelConfig(
        id="8b", architecture="LlamaForCausalLM", num_layers=36, hidden_size=4096, num_heads=32, num_kv_heads=8,
        head_dim=128, intermediate_size=12288, vocab_size=151936, max_positions=40960, rope_theta=1e6,
        rope_scaling=RopeScaling(), rms_norm_eps=1e-6, tie_embeddings=False, stop_token_ids=frozenset(),
    )  # fmt: skip
    assert config.kv_bytes_per_token("bf16") == 147_456
    assert config.kv_bytes_per_token("bf16") * 8192 == 1_207_959_552


def test_parameters_are_counted_as_transformers_counts_them(tmp_path: Path) -> None:
    for tied in (True, False):
        model = save_tiny_llama(tmp_path / str(tied), tie_word_embeddings=tied)
        found = find_model(str(tmp_path / str(tied)), weights="fp32", device="cpu")
        assert found.config.num_parameters == sum(p.numel() for p in model.parameters())
        # A tied table is kept twice where the head is packed: as rows to look up, and as a product.
        table = found.config.vocab_size * found.config.hidden_size
        copied = table if tied and packing_works(torch.float32) else 0
        assert found.weight_bytes == 4 * (found.config.num_parameters + copied)
        assert found.peak_bytes >= found.weight_bytes + 4 * table


def test_stop_tokens_are_the_union_of_all_sources(tmp_path: Path) -> None:  # REQ-27
    save_tiny_llama(tmp_path)
    edit(tmp_path, eos_token_id=7)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9]}))
    found = find_model(str(tmp_path), weights="fp32", device="cpu")
    end = AutoTokenizer.from_pretrained(tmp_path).eos_token_id
    assert found.config.stop_token_ids == {7, 8, 9, end}


def test_a_missing_shard_is_named(tmp_path: Path) -> None:  # MOD-01
    save_tiny_llama(tmp_path, shard_size="100KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    load_model(str(tmp_path), weights="fp32", device="cpu")
    for shard in shards[:2]:
        shard.unlink()
    message = refusal(tmp_path)
    assert shards[0].name in message
    assert shards[1].name in message
    assert shards[2].name not in message


def test_missing_misshapen_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 3)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    save_file(tensors, path)
    message = refusal(tmp_path)
    assert "missing: model.norm.weight" in message
    assert "model.layers.0.mlp.up_proj.weight (3, 3) instead of (112, 64)" in message
    assert "model.layers.0.self_attn.q_proj.bias" in message


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported. Supported are LlamaForCausalLM"),
        ({"architectures": None}, "Supported are"),
        ({"attention_bias": True}, "biases"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "yarn"),  # CTX-07
        ({"rope_parameters": ..., "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({**MISTRAL, "sliding_window": 48, "layer_types": ["sliding_attention", "full_attention"]}, "some layers only"),
        ({**MISTRAL, "sliding_window": -1}, "sliding_window must be at least 1"),
        ({"num_hidden_layers": ...}, "num_hidden_layers"),
        ({"hidden_size": "wide"}, "cannot be read"),
        ({"num_key_value_heads": 3}, "share"),
        ({"vocab_size": 999}, "model.embed_tokens.weight (300, 64) instead of (999, 64)"),
    ],
)
def test_what_the_decoder_would_get_wrong_is_refused(tmp_path: Path, changes: dict[str, Any], part: str) -> None:
    save_tiny_llama(tmp_path)
    edit(tmp_path, **changes)
    assert part in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 48}, 48),
        ({"sliding_window": 48, "layer_types": ["sliding_attention"] * 3}, 48),
        ({"sliding_window": 511}, 511),
        ({"sliding_window": 512}, None),  # as long as the trained context
        ({"sliding_window": None}, None),
        ({"sliding_window": None, "max_position_embeddings": 8192}, None),
        ({"sliding_window": ..., "max_position_embeddings": 8192}, MistralConfig().sliding_window),
        ({"sliding_window": 48, "architectures": ["LlamaForCausalLM"]}, None),  # which knows no windows
    ],
)
def test_the_sliding_window_is_what_the_config_says(
    tmp_path: Path, changes: dict[str, Any], window: int | None
) -> None:
    save_tiny_mistral(tmp_path)
    edit(tmp_path, **changes)
    assert find_model(str(tmp_path), weights="fp32", device="cpu").config.sliding_window == window


def test_model_info_tells_the_sliding_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for window in (48, None):
        save_tiny_mistral(tmp_path, sliding_window=window)
        assert describe_model(str(tmp_path), as_json=True) == 0
        assert json.loads(capsys.readouterr().out)["sliding_window"] == window
        assert describe_model(str(tmp_path), as_json=False) == 0
        assert ("trained context 512 tokens, sliding window 48, vocabulary 300" in capsys.readouterr().out) == (
            window == 48
        )


def test_older_names_of_rotary_scaling(tmp_path: Path) -> None:
    reference = save_tiny_llama(tmp_path, rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0})
    edit(tmp_path, rope_parameters=..., rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 2.0})
    driver = Driver(Runner(load_model(str(tmp_path), weights="fp32", device="cpu"), 8), 8, random.Random(0))
    prompt = random_prompt(driver.random, 70)
    assert_greedy(reference, prompt, driver.generate([make_request("a", prompt)], 8)["a"])


def test_sources_that_are_not_there_or_not_a_model(tmp_path: Path) -> None:
    assert "config.json is missing" in refusal(tmp_path)
    assert "--model takes smollm2 (embedded)" in refusal(tmp_path / "nowhere")
    assert "no model at" in refusal(tmp_path / "nowhere.gguf")
    (tmp_path / "notes.txt").write_text("hello")
    assert "not a .gguf file" in refusal(tmp_path / "notes.txt")
    for content in (b"", b"GGUF", b"hello, I am no model", b"GGUF\3\0\0\0" + b"\xff" * 64):  # SEC-11
        (tmp_path / "broken.gguf").write_bytes(content)
        assert "not a readable GGUF file" in refusal(tmp_path / "broken.gguf")
    save_tiny_llama(tmp_path / "bin")
    (tmp_path / "bin" / "model.safetensors").rename(tmp_path / "bin" / "pytorch_model.bin")
    assert ".bin" in refusal(tmp_path / "bin")
    save_tiny_llama(tmp_path / "cut")
    whole = (tmp_path / "cut" / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "damaged" in refusal(tmp_path / "cut")


def test_what_is_not_there_is_a_usage_error_and_what_is_broken_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe_model(str(tmp_path / "nowhere.gguf"), as_json=False) == 2
    assert measure_steps(StartSettings(model=str(tmp_path), device="cuda:99")) == 2
    assert serve(StartSettings(model=str(tmp_path / "nowhere"), socket=tmp_path / "socket", port=0)) == 2
    (tmp_path / "broken.gguf").write_bytes(b"hello, I am no model")
    assert describe_model(str(tmp_path / "broken.gguf"), as_json=False) == 1
    output = capsys.readouterr()
    assert output.out.count("no model at") == 2
    assert "'cuda:99' is not there" in output.err


def test_a_hub_id_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # MOD-04
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = refusal("some-org/some-model")
    assert "some-org/some-model" in message
    assert "--model at a folder or a .gguf file" in message


def test_a_model_larger_than_the_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # MOD-05
    save_tiny_llama(tmp_path)
    monkeypatch.setattr(load_module, "available_memory", lambda device: 1000)
    monkeypatch.setattr(load_module, "read_weights", lambda *_: pytest.fail("weights were read"))
    message = refusal(tmp_path)
    assert "needs" in message
    assert "bf16" in message


def test_the_memory_beside_the_weights_is_what_loading_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_llama(tmp_path)
    found = find_model(str(tmp_path), weights="fp32", device="cpu")
    monkeypatch.setattr(load_module, "available_memory", lambda device: found.peak_bytes)
    assert memory_beside(found) == found.peak_bytes - found.weight_bytes  # it just fits
    monkeypatch.setattr(load_module, "available_memory", lambda device: found.peak_bytes - 1)
    with pytest.raises(ModelError, match="while loading"):
        memory_beside(found)


def test_num_03_weights_that_give_nan_at_once_are_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][0, 0] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    assert "NaN" in refusal(tmp_path)


def test_device_and_type_are_chosen_with_a_reason() -> None:
    assert choose_device("cpu").type == "cpu"
    for wrong in ("gpu", "cuda:", "cuda:x", "cuda:99"):
        with pytest.raises(UsageError, match=r"cuda|CUDA"):
            choose_device(wrong)
    name, reason = choose_dtype("auto", torch.device("cpu"))
    assert name in ("fp32", "bf16")
    assert name in reason
    with pytest.raises(ModelError, match="fp8"):
        choose_dtype("fp8", torch.device("cpu"))


def write_gguf(
    path: Path,
    reference: Any,
    kind: GGMLQuantizationType,
    *,
    others: dict[str, GGMLQuantizationType] | None = None,
    rope_factors: np.ndarray | None = None,
    linear_scaling: float | None = None,
    **fields: Any,
) -> None:
    """A GGUF of ``reference`` as llama.cpp's converter writes it: Q and K rows interleaved, matrices quantised.

    ``others`` names matrices of another type than ``kind``.
    """
    others = others or {}
    config = reference.config
    writer = GGUFWriter(path, fields.get("architecture", "llama"))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if linear_scaling is not None:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(linear_scaling)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = alphabet + [f"<{i}>" for i in range(config.vocab_size - len(alphabet) - 1)] + ["ab"]
    kinds = [1] * len(alphabet) + [3] * (config.vocab_size - len(alphabet) - 1) + [1]
    writer.add_tokenizer_model(fields.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(fields.get("pre", "llama-bpe"))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_eot_token_id(258)
    writer.add_add_bos_token(True)
    names = {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, tensor in reference.state_dict().items():
        base = name.removesuffix(".weight")
        values = tensor.float().numpy()
        if base in top:
            target = top[base]
        else:
            _, _, number, part = base.split(".", 3)
            target = f"blk.{number}.{names[part]}"
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = config.num_attention_heads if part.endswith("q_proj") else config.num_key_value_heads
                rows, columns = values.shape
                values = values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        if values.ndim == 1:
            writer.add_tensor(f"{target}.weight", values)
        else:
            own = others.get(target, kind)
            writer.add_tensor(f"{target}.weight", quantize(np.ascontiguousarray(values), own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_gguf_gives_the_model_it_was_made_from(tmp_path: Path, own_cache: Path, kind: str) -> None:
    shape = {"vocab_size": 288, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    reference = save_tiny_llama(tmp_path / "hf", **shape)
    if kind != "F32":  # so that storing it again loses nothing: Q8_0 keeps whole numbers up to 127 as they are
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.copy_((parameter * 64).round().clamp(-127, 127) / 64)
                if parameter.ndim == 2:
                    parameter[:, ::32] = 127 / 64
    write_gguf(tmp_path / "tiny.gguf", reference, GGMLQuantizationType[kind])
    model = load_model(str(tmp_path / "tiny.gguf"), weights="fp32", device="cpu")
    assert model.id == "tiny"
    assert model.config.stop_token_ids == {257, 258}
    driver = Driver(Runner(model, 16), 16, random.Random(0))
    prompt = random_prompt(driver.random, 60, 288)
    assert_greedy(reference, prompt, driver.generate([make_request("a", prompt)], 12)["a"], tie=5e-3)


def test_a_gguf_brings_its_sliding_window(tmp_path: Path, own_cache: Path) -> None:
    reference = save_tiny_mistral(tmp_path / "hf", vocab_size=288, sliding_window=24)
    write_gguf(tmp_path / "tiny.gguf", reference, GGMLQuantizationType.F32)
    model = load_model(str(tmp_path / "tiny.gguf"), weights="fp32", device="cpu")
    assert model.config.sliding_window == 24
    driver = Driver(Runner(model, 16), 16, random.Random(0))
    prompt = random_prompt(driver.random, 60, 288)
    assert_greedy(reference, prompt, driver.generate([make_request("a", prompt)], 12)["a"])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_4_bits_of_a_gguf_are_taken_over_exactly(tmp_path: Path, own_cache: Path, kind: str) -> None:
    reference = save_tiny_llama(tmp_path / "hf", vocab_size=288, intermediate_size=128)
    write_gguf(tmp_path / "tiny.gguf", reference, GGMLQuantizationType[kind])
    checkpoint = find_model(str(tmp_path / "tiny.gguf"), weights="fp32", device="cpu").checkpoint
    assert isinstance(checkpoint, FourBitCheckpoint)
    assert checkpoint.in_four_bits == (kind != "Q8_0")
    matrices = [name for name, shape in checkpoint.shapes.items() if len(shape) == 2]
    for name in matrices:
        whole, found = checkpoint.get(name), checkpoint.four_bits(name)
        if kind == "Q8_0":
            assert found is None
        else:
            assert found is not None
            assert torch.equal(torch.from_numpy(found.values()), whole)
    name = "model.embed_tokens.weight"
    assert torch.equal(checkpoint.rows(name, 250, 100), checkpoint.get(name)[250:])


@pytest.mark.parametrize("name", ["attn_q", "attn_output", "ffn_down"])
def test_a_gguf_with_one_product_in_8_bits_is_not_in_4_bits(tmp_path: Path, own_cache: Path, name: str) -> None:
    reference = save_tiny_llama(tmp_path / "hf", vocab_size=288, intermediate_size=128)
    for number in (0, 2):
        others = {f"blk.{number}.{name}": GGMLQuantizationType.Q8_0}
        write_gguf(tmp_path / "tiny.gguf", reference, GGMLQuantizationType.Q4_0, others=others)
        checkpoint = find_model(str(tmp_path / "tiny.gguf"), weights="fp32", device="cpu").checkpoint
        assert isinstance(checkpoint, FourBitCheckpoint)
        assert not checkpoint.in_four_bits
    # The table of tokens and the head are kept in other types anyway.
    others = {"token_embd": GGMLQuantizationType.Q8_0, "output": GGMLQuantizationType.Q8_0}
    write_gguf(tmp_path / "tiny.gguf", reference, GGMLQuantizationType.Q4_0, others=others)
    checkpoint = find_model(str(tmp_path / "tiny.gguf"), weights="fp32", device="cpu").checkpoint
    assert isinstance(checkpoint, FourBitCheckpoint)
    assert checkpoint.in_four_bits


def test_a_gguf_brings_the_rope_factors_of_llama3(tmp_path: Path, own_cache: Path) -> None:
    """llama.cpp's converter writes llama3 scaling as a tensor of divisors."""
    scaling = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    reference = save_tiny_llama(tmp_path / "hf", vocab_size=288, rope_parameters=scaling)
    plain = 1.0 / 10000.0 ** (np.arange(0, 16, 2) / 16)
    factors = plain / reference.model.rotary_emb.inv_freq.numpy()
    assert factors.max() == pytest.approx(8.0)
    write_gguf(tmp_path / "tiny.gguf", reference, GGMLQuantizationType.F32, rope_factors=factors)
    assert_greedy_from_file(tmp_path / "tiny.gguf", reference)


def test_a_gguf_brings_linear_rope_scaling(tmp_path: Path, own_cache: Path) -> None:
    scaling = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    reference = save_tiny_llama(tmp_path / "hf", vocab_size=288, rope_parameters=scaling)
    write_gguf(tmp_path / "tiny.gguf", reference, GGMLQuantizationType.F32, linear_scaling=4.0)
    assert_greedy_from_file(tmp_path / "tiny.gguf", reference)


def assert_greedy_from_file(path: Path, reference: Any) -> None:
    driver = Driver(Runner(load_model(str(path), weights="fp32", device="cpu"), 16), 16, random.Random(0))
    prompt = random_prompt(driver.random, 120, 288)
    assert_greedy(reference, prompt, driver.generate([make_request("a", prompt)], 12)["a"])


def test_gguf_tokenizer_is_cached_and_honours_the_file(tmp_path: Path, own_cache: Path) -> None:
    reference = save_tiny_llama(tmp_path / "hf")
    write_gguf(tmp_path / "a.gguf", reference, GGMLQuantizationType.F32)
    first = find_model(str(tmp_path / "a.gguf"), weights="fp32", device="cpu").tokenizer_folder
    stamp = (first / "tokenizer.json").stat().st_mtime_ns
    (tmp_path / "a.gguf").rename(tmp_path / "b.gguf")
    second = find_model(str(tmp_path / "b.gguf"), weights="fp32", device="cpu").tokenizer_folder
    assert second == first
    assert (second / "tokenizer.json").stat().st_mtime_ns == stamp
    assert own_cache in first.parents
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    tokenizer = AutoTokenizer.from_pretrained(first)
    ids = tokenizer.encode("cab<5>")
    assert ids[0] == 256  # begin of text, as the file asks
    assert tokenizer.convert_ids_to_tokens(ids[1:]) == ["c", "ab", "<5>"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 257)


def test_gguf_kinds_that_cannot_be_exact_are_refused(tmp_path: Path, own_cache: Path) -> None:
    reference = save_tiny_llama(tmp_path / "hf")
    path = tmp_path / "a.gguf"
    write_gguf(path, reference, GGMLQuantizationType.F32, tokenizer="llama")
    assert "--model FOLDER" in refusal(path)
    write_gguf(path, reference, GGMLQuantizationType.F32, pre="strange")
    assert "'strange' is not known" in refusal(path)
    write_gguf(path, reference, GGMLQuantizationType.F32, architecture="gemma")
    assert "gemma is not supported" in refusal(path)
