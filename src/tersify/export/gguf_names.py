"""What transformers and llama.cpp call the parts of a language model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# what llama.cpp calls families of transformers
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str | None:
    """llama.cpp's name of a tensor of transformers; None where it has none."""
    module, _, kind = name.rpartition(".")
    if module in TOP:
        return f"{TOP[module]}.{kind}"
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module)
    if found is None or found[2] not in LAYER:
        return None
    return f"blk.{found[1]}.{LAYER[found[2]]}.{kind}"


def turned_heads(name: str, config: Mapping[str, Any]) -> int:
    """Of how many heads the rows lie in another order there: pairs that are rotated
    together are neighbours for the family llama, and halves apart in transformers.
    """
    if ARCHITECTURES.get(config["model_type"]) != "llama":
        return 0
    if ".q_proj." in name:
        return int(config["num_attention_heads"])
    if ".k_proj." in name:
        return int(config.get("num_key_value_heads") or config["num_attention_heads"])
    return 0


def as_neighbours(rows: Tensor, heads: int) -> Tensor:
    """Rows of transformers in the order of llama.cpp."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def as_halves(rows: Tensor, heads: int) -> Tensor:
    """Rows of llama.cpp in the order of transformers."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def in_order(
    rows: Tensor, name: str, config: Mapping[str, Any], *, there: bool
) -> Tensor:
    """The rows as llama.cpp (`there`) or transformers has them."""
    heads = turned_heads(name, config)
    if not heads:
        return rows
    order = torch.arange(len(rows))
    return rows[(as_neighbours if there else as_halves)(order, heads)]
