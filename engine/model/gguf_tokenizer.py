"""The tokenizer inside a GGUF file, written to the cache once as a Hugging Face tokenizer folder.

Byte-level BPE vocabularies are rebuilt exactly, with the pre-tokenizer that the file names. Other kinds are refused,
not approximated: a slightly wrong tokenizer would silently give slightly wrong text.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from slotdeck.engine.model.errors import ModelError
from slotdeck.engine.model.gguf_file import GGUFCheckpoint
from slotdeck.engine.paths import cache_folder

_FORMAT = 1
"""Must rise when the folder is written differently, so that older folders are not used."""

_CONTROL, _USER_DEFINED = 3, 4
_IDENTITY = ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id", "padding_token_id")

_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def tokenizer_folder(checkpoint: GGUFCheckpoint) -> Path:
    """A folder that `transformers.AutoTokenizer` opens offline. It is written on first use and kept in the cache.

    Raises ModelError if the vocabulary is not byte-level BPE with a known pre-tokenizer, or if the disk is full.
    """
    reader, metadata = checkpoint.reader, checkpoint.metadata
    digest = hashlib.sha256(str(_FORMAT).encode())
    for name in (*(f"tokenizer.ggml.{part}" for part in _IDENTITY), "tokenizer.chat_template"):
        digest.update(name.encode() + b"\0" + reader.span(name))
    digest.update(repr((metadata.get("tokenizer.ggml.add_bos_token"), checkpoint.config.max_positions)).encode())
    folder = cache_folder() / "tokenizers" / digest.hexdigest()[:32]
    if (folder / "tokenizer_config.json").is_file() and (folder / "tokenizer.json").is_file():
        return folder
    tokenizer, config = _build(checkpoint)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
        try:
            tokenizer.save(str(temporary / "tokenizer.json"))
            (temporary / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False), "utf-8")
            try:
                os.rename(temporary, folder)
            except OSError:
                if not (folder / "tokenizer_config.json").is_file():  # otherwise another process was faster
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"cannot store the tokenizer in {folder.parent}: {error.strerror or error}. Free some space or point"
            " SLOTDECK_CACHE at another folder."
        ) from error
    return folder


def _build(checkpoint: GGUFCheckpoint) -> tuple[Tokenizer, dict[str, object]]:
    reader, metadata, id = checkpoint.reader, checkpoint.metadata, checkpoint.config.id
    kind = str(metadata.get("tokenizer.ggml.model", "none"))
    if kind != "gpt2":
        raise ModelError(
            f"{id}: the file's tokenizer is of kind {kind!r}; only byte-level BPE (gpt2) is read from GGUF files."
            " Use the model's folder with safetensors and tokenizer.json instead: --model FOLDER."
        )
    tokens = reader.strings("tokenizer.ggml.tokens")
    parts = [merge.partition(" ") for merge in reader.strings("tokenizer.ggml.merges")]
    merges = [(left, right) for left, _, right in parts]
    if len(tokens) != checkpoint.config.vocab_size or not all(right for _, right in merges):
        raise ModelError(
            f"{id}: the vocabulary has {len(tokens)} tokens and the weights {checkpoint.config.vocab_size};"
            " the file is damaged. Fetch it again."
        )
    kinds = reader.numbers("tokenizer.ggml.token_type") or [1] * len(tokens)
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    model = models.BPE(
        vocab={token: number for number, token in enumerate(tokens)}, merges=merges, ignore_merges=pre == "llama-bpe"
    )
    tokenizer = Tokenizer(model)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, id)
    tokenizer.decoder = decoders.ByteLevel()
    marked = zip(tokens, kinds, strict=True)
    added = [(token, number) for token, number in marked if number in (_CONTROL, _USER_DEFINED)]
    # Added in the order of their ids, so that each keeps its id.
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=number == _CONTROL) for t, number in added])

    def named(name: str) -> tuple[str, int] | None:
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return None if number is None or not 0 <= int(number) < len(tokens) else (tokens[int(number)], int(number))

    begin = named("bos")
    adds_begin = bool(metadata.get("tokenizer.ggml.add_bos_token", False)) and begin is not None
    if adds_begin and begin is not None:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{begin[0]}:0 $A:0", special_tokens=[begin])
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": checkpoint.config.max_positions,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": adds_begin,
    }
    for name, key in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        token = named(name)
        if token is not None:
            config[key] = token[0]
    if metadata.get("tokenizer.chat_template"):
        config["chat_template"] = str(metadata["tokenizer.chat_template"])
    return tokenizer, config


def _pre_tokenizer(pre: str, id: str) -> pre_tokenizers.PreTokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    if pre in ("gpt-2", "default"):
        return plain
    patterns = {"llama-bpe": _LLAMA3_PATTERN, "qwen2": _QWEN2_PATTERN}
    if pre not in patterns:
        raise ModelError(
            f"{id}: the file's pre-tokenizer {pre!r} is not known; known are smollm, gpt-2, llama-bpe, qwen2."
            " Use the model's folder with safetensors and tokenizer.json instead: --model FOLDER."
        )
    split = pre_tokenizers.Split(Regex(patterns[pre]), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
