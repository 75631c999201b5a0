"""A network in llama2.c's first format as a Llama of transformers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

HEADER = "<7i"  # dim, hidden, layers, heads, key heads, vocabulary, positions


def load_llama2c(path: Path) -> torch.nn.Module:
    """The model in float32; its head is the embedding. Rotary pairs lie side by side in
    the file, in halves here.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    data = path.read_bytes()
    dim, hidden, layers, heads, key_heads, tokens, positions = struct.unpack_from(
        HEADER, data
    )
    if tokens < 0:
        raise ValueError(f"{path} has a head of its own; only tied embeddings are read")
    numbers = np.frombuffer(data, "<f4", offset=struct.calcsize(HEADER))
    at = 0

    def take(*shape: int) -> Tensor:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return torch.from_numpy(numbers[at - count : at].copy()).view(shape)

    def in_halves(weight: Tensor) -> Tensor:
        return (
            weight.view(layers, -1, dim // heads // 2, 2, dim)
            .transpose(2, 3)
            .reshape(weight.shape)
        )

    keys = dim // heads * key_heads
    embedding, norm = take(tokens, dim), take(layers, dim)
    parts = {
        "input_layernorm": norm,
        "self_attn.q_proj": in_halves(take(layers, dim, dim)),
        "self_attn.k_proj": in_halves(take(layers, keys, dim)),
        "self_attn.v_proj": take(layers, keys, dim),
        "self_attn.o_proj": take(layers, dim, dim),
        "post_attention_layernorm": take(layers, dim),
        "mlp.gate_proj": take(layers, hidden, dim),
        "mlp.down_proj": take(layers, dim, hidden),
        "mlp.up_proj": take(layers, hidden, dim),
    }
    config = LlamaConfig(
        hidden_size=dim,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=tokens,
        max_position_embeddings=positions,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    state = {
        f"model.layers.{i}.{part}.weight": each
        for part, all_of in parts.items()
        for i, each in enumerate(all_of)
    }
    state |= {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": embedding,
        "model.norm.weight": take(dim),
    }
    model.load_state_dict(state)
    return model
