"""The embedded model in the forms that the peers read: a GGUF file in Q8_0, and a Hugging Face folder in fp32.

Every form holds the values of the embedded Q4_1 file; Q8_0 rounds them once more, as Slotdeck's int8 does.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFEndian, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

from slotdeck.engine.model.fetch import embedded_model_path
from slotdeck.engine.model.load import find_model
from slotdeck.engine.paths import cache_folder

NAME = "SmolLM2-135M-Instruct"
Say = Callable[[str], None]


def q4_1_file() -> Path:
    """The embedded model's file, which is fetched first if it is missing."""
    return embedded_model_path()


def q8_0_file(say: Say) -> Path:
    """A file with the same tensors, every matrix in Q8_0. It is written on first use."""
    path = _folder() / f"{NAME}.Q8_0.gguf"
    if path.is_file():
        return path
    say(f"writing {path}")
    reader = GGUFReader(q4_1_file())
    temporary = path.with_suffix(".part")
    writer = GGUFWriter(temporary, str(reader.fields["general.architecture"].contents()), endianess=GGUFEndian.LITTLE)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values.astype(np.float32))
        else:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.rename(path)
    return path


def hugging_face_folder(say: Say) -> Path:
    """A folder with config.json, model.safetensors in fp32 and the tokenizer; written on first use."""
    folder = _folder() / NAME
    if (folder / "config.json").is_file():
        return folder
    say(f"writing {folder}")
    found = find_model("smollm2", weights="fp32", device="cpu")
    checkpoint, config = found.checkpoint, found.config
    shutil.copytree(found.tokenizer_folder, folder, dirs_exist_ok=True)
    tensors = {name: checkpoint.get(name).float().contiguous() for name in checkpoint.shapes}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    document = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings,
        "vocab_size": config.vocab_size,
        "eos_token_id": min(config.stop_token_ids),
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(document, indent=1), "utf-8")
    return folder


def _folder() -> Path:
    folder = cache_folder() / "peers" / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
