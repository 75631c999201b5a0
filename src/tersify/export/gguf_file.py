"""A language model as a GGUF file for llama.cpp: every tensor in the smallest type that
holds it exactly.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tersify.codec.atomic import replacing
from tersify.export.gguf_blocks import FLOATS, TERNARY, encoded, shifted_nibbles
from tersify.export.gguf_names import ARCHITECTURES, gguf_name, in_order
from tersify.tensor import CompressedTensor
from tersify.tensor.blocks import Joined

NORMAL, CONTROL = 1, 3  # llama.cpp's kinds of tokens
WIDE = "matrices that fit no smaller type"


def export_gguf(
    model: Mapping[str, CompressedTensor | Tensor],
    about: Mapping[str, Any],
    path: Path,
    *,
    ternary: str = "TQ2_0",
) -> dict[str, int]:
    """Write the file; returns how many tensors are of each type, and of them under
    `WIDE` the matrices in F32.

    Args:
        model: the tensors by the names of transformers.
        about: "config", "tokenizer", "special_tokens" and "chat_template", as a `.terse` file of a language model
            has them.
        path: the file; it lies there whole or not at all.
        ternary: the type of ternary matrices, TQ2_0 or the smaller TQ1_0.
    """
    config = about["config"]
    family = config.get("model_type")
    if family not in ARCHITECTURES:
        raise ValueError(
            f"models of type {family!r} cannot be written as GGUF; {', '.join(ARCHITECTURES)} can"
        )
    if ternary not in TERNARY:
        raise ValueError(f"ternary must be {' or '.join(TERNARY)}, got {ternary!r}")
    if config.get("rope_scaling") or _lengthened(config):
        raise ValueError(
            "rotations that are scaled cannot be written as GGUF; export safetensors instead"
        )
    try:
        import gguf
    except ImportError:
        raise ValueError(
            "GGUF needs the package gguf; pip install 'tersify[gguf]'"
        ) from None
    counts: Counter[str] = Counter()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, "model.gguf")
        writer = gguf.GGUFWriter(made, ARCHITECTURES[family])
        _add_sizes(writer, config)
        _add_words(writer, about)
        for name in model:
            found = gguf_name(name)
            if found is None:
                raise ValueError(
                    f"llama.cpp has no tensor for {name!r}, so this model cannot be written as GGUF"
                )
            kind, data = _exactly(model, name, config, ternary)
            counts[kind] += 1
            counts[WIDE] += kind == "F32" and data.ndim > 1
            raw = None if kind in FLOATS else gguf.GGMLQuantizationType[kind]
            writer.add_tensor(found, data, raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with made.open("rb") as source, replacing(path) as file:
            shutil.copyfileobj(source, file)
    return dict(counts)


def _exactly(
    model: Mapping[str, CompressedTensor | Tensor],
    name: str,
    config: Mapping[str, Any],
    ternary: str,
) -> tuple[str, Any]:
    """The type of a tensor there, and its data."""
    blocks = model.blocks(name) if isinstance(model, Joined) else None
    if blocks is not None and (data := shifted_nibbles(*blocks)) is not None:
        order = in_order(torch.arange(len(data)), name, config, there=True)
        return "Q4_1", data[order.numpy()]
    tensor = model[name]
    dense = tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor
    rows = in_order(dense.detach().float(), name, config, there=True)
    return encoded(np.ascontiguousarray(rows.numpy()), ternary)


def _lengthened(config: Mapping[str, Any]) -> bool:
    told = config.get("rope_parameters") or {}
    return told.get("rope_type", "default") != "default"


def _base(config: Mapping[str, Any]) -> float:
    told = config.get("rope_parameters") or {}
    return float(told.get("rope_theta", config.get("rope_theta", 10000.0)))


def _add_sizes(writer: Any, config: Mapping[str, Any]) -> None:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(_base(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _add_words(writer: Any, about: Mapping[str, Any]) -> None:
    """The tokenizer: byte pairs over bytes, which is what llama.cpp calls gpt2."""
    stored = json.loads(about["tokenizer"])
    model, before = stored["model"], stored.get("pre_tokenizer") or {}
    parts = [each["type"] for each in before.get("pretokenizers", [before]) if each]
    if model.get("type") != "BPE" or "ByteLevel" not in parts:
        raise ValueError(
            "the tokenizer is no byte-level BPE, and no other is written as GGUF"
        )
    words = dict(model["vocab"])
    special = {each["content"]: each["id"] for each in stored["added_tokens"]}
    words |= special
    count = about["config"]["vocab_size"]
    by_number = {number: word for word, number in words.items() if number < count}
    writer.add_tokenizer_model("gpt2")
    # SmolLM's way of cutting: every digit by itself
    writer.add_tokenizer_pre("smollm" if "Digits" in parts else "gpt-2")
    writer.add_token_list([by_number.get(i, f"[unused{i}]") for i in range(count)])
    writer.add_token_types(
        [CONTROL if by_number.get(i) in special else NORMAL for i in range(count)]
    )
    writer.add_token_merges(
        [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    )
    known = about.get("special_tokens", {})
    for kind, add in (
        ("bos", writer.add_bos_token_id),
        ("eos", writer.add_eos_token_id),
        ("unk", writer.add_unk_token_id),
        ("pad", writer.add_pad_token_id),
    ):
        if (number := words.get(known.get(f"{kind}_token"))) is not None:
            add(number)
    writer.add_add_bos_token(False)
    if about.get("chat_template"):
        writer.add_chat_template(about["chat_template"])
