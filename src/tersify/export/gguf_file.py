"""A language model as a GGUF file for llama.cpp: every tensor in the smallest type that
holds it exactly.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tersify.codec.atomic import replacing
from tersify.export.gguf_blocks import FLOATS, TERNARY, encoded, shifted_nibbles
from tersify.export.gguf_names import ARCHITECTURES, gguf_name, in_order
from tersify.export.gguf_words import add_words
from tersify.runtime.decode.architecture import windows_of_layers
from tersify.tensor import CompressedTensor
from tersify.tensor.blocks import Joined

SILU = ("silu", "swish")
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
    _check_told(config)
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
        add_words(writer, about)
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


def _check_told(config: Mapping[str, Any]) -> None:
    """What llama.cpp takes for granted in these families must be so."""
    activation = config.get("hidden_act", "silu")
    window = max(windows_of_layers(SimpleNamespace(**config)))
    for what, is_so in (
        ("rotations that are scaled", config.get("rope_scaling")),
        ("rotations that are scaled", _lengthened(config)),
        (f"layers with the activation {activation!r}", activation not in SILU),
        (
            f"layers that see {window} positions back",
            0 < window < config["max_position_embeddings"],
        ),
    ):
        if is_so:
            raise ValueError(
                f"{what} cannot be written as GGUF; export safetensors instead"
            )


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
