"""A network in llama2.c's first format as a Llama of transformers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

HEADER = "<7i"  # dim, hidden, layers, heads, key heads, vocabulary, positions
# how stories260K begins in llama2.c itself: "Once upon a time, there was a little"
OPENING = (1, 403, 407, 261, 378, 432, 383, 286, 261, 376)


def load_llama2c(path: Path) -> Any:
    """The model in float32; its head is the embedding. Rotary pairs lie side by side in
    the file, in halves here.

    Some copies were written by a program that transposed the stack of every kind of
    matrix in place once for each of its layers. `OPENING` tells which kind `path` is.
    """
    data = path.read_bytes()
    if len(data) < struct.calcsize(HEADER):
        raise ValueError(f"{path} is too short for a file of llama2.c")
    sizes = struct.unpack_from(HEADER, data)
    if sizes[5] < 0:
        raise ValueError(f"{path} has a head of its own; only tied embeddings are read")
    numbers = np.frombuffer(data[struct.calcsize(HEADER) :], "<f4")
    for turns in (0, sizes[2]):
        model = _model(numbers, sizes, turns)
        if _goes_on(model, torch.tensor([OPENING])):
            return model
    raise ValueError(
        f"{path} does not tell the story of stories260K; its weights lie in another order"
    )


def _model(numbers: Any, sizes: tuple[int, ...], turns: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    dim, hidden, layers, heads, key_heads, tokens, positions = sizes
    at = 0

    def take(*shape: int) -> Tensor:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return torch.from_numpy(numbers[at - count : at].copy()).view(shape)

    def matrices(rows: int, columns: int) -> Tensor:
        taken = take(layers, rows, columns)
        for _ in range(turns):
            taken = taken.transpose(1, 2).reshape(layers, rows, columns)
        return taken

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
        "self_attn.q_proj": in_halves(matrices(dim, dim)),
        "self_attn.k_proj": in_halves(matrices(keys, dim)),
        "self_attn.v_proj": matrices(keys, dim),
        "self_attn.o_proj": matrices(dim, dim),
        "post_attention_layernorm": take(layers, dim),
        "mlp.gate_proj": matrices(hidden, dim),
        "mlp.down_proj": matrices(dim, hidden),
        "mlp.up_proj": matrices(hidden, dim),
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


@torch.no_grad()
def _goes_on(model: Any, ids: Tensor) -> bool:
    """Whether each of the tokens is the likeliest behind those before it."""
    return torch.equal(model(ids[:, :-1]).logits.argmax(-1), ids[:, 1:])
