"""What people write besides layers and views: einsum, gathers, spectra, other types,
masks, state, shared weights.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fuzz_steps import Drawn, kind, owned, plain
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


def drawn_from(rng: random.Random, choices: dict[str, Function]) -> Drawn:
    name = rng.choice(list(choices))
    return plain(name, choices[name])


@kind
def product(rng: random.Random, x: Tensor) -> Drawn | None:
    """Sums of products by name; a permutation alone is a view."""
    return drawn_from(
        rng,
        {
            "einsum('...i,...i->...')": lambda v: torch.einsum("...i,...i->...", v, v),
            "einsum('bij,bkj->bik')": lambda v: torch.einsum("bij,bkj->bik", v, v),
            "einsum('bchw->bhwc')": lambda v: torch.einsum("bchw->bhwc", v),
            "einsum('ij->ji') written": lambda v: torch.einsum("ij->ji", v).mul_(2),
            "bmm": lambda v: torch.bmm(v, v.mT),
            "outer of rows": lambda v: v.unsqueeze(-1) * v.unsqueeze(-2),
            "cdist": lambda v: torch.cdist(v, v),
            "tensordot": lambda v: torch.tensordot(v, v, dims=([-1], [-1])),
        },
    )


@kind
def picked(rng: random.Random, x: Tensor) -> Drawn | None:
    """By index: gathers, scatters, orders, comparisons."""
    if x.ndim == 0 or not x.is_floating_point():
        return None
    axis = rng.randrange(x.ndim)
    count = rng.randint(1, x.shape[axis])

    def put(v: Tensor) -> Tensor:
        made = v.clone()
        made[v > 0.2] = -1.0
        return made

    def put_at(v: Tensor) -> Tensor:
        made = v * 1
        made[torch.tensor([0, -1])] = made[torch.tensor([-1, 0])] * 2
        return made

    return drawn_from(
        rng,
        {
            f"gather({axis})": lambda v: v.gather(axis, v.argsort(axis)),
            f"scatter({axis})": lambda v: torch.zeros_like(v).scatter(
                axis, v.argmax(axis, keepdim=True), 1.0
            ),
            f"scatter_add({axis})": lambda v: v.scatter_add(
                axis, (v > 0).long() * 0, v
            ),
            "index_put of a mask": put,
            "index_put of places": put_at,
            "index_add": lambda v: v.index_add(0, torch.tensor([0]), v[:1], alpha=2),
            f"topk({count}, {axis})": lambda v: v.topk(count, axis).values,
            f"sort({axis})": lambda v: v.sort(axis, descending=True).values,
            f"argmax({axis}) as floats": lambda v: v.argmax(axis).to(v.dtype),
            f"take_along_dim({axis})": lambda v: torch.take_along_dim(
                v, v.argmin(axis, keepdim=True), axis
            ),
            f"cummax({axis})": lambda v: v.cummax(axis).values,
            "one_hot": lambda v: F.one_hot((v > 0).long(), 3).to(v.dtype),
            "bucketize": lambda v: torch.bucketize(
                v, torch.tensor([-0.5, 0.0, 0.7])
            ).to(v.dtype),
            "nan_to_num": lambda v: (v / v.abs().floor()).nan_to_num(1.0, 2.0, -2.0),
        },
    )


@kind
def typed(rng: random.Random, x: Tensor) -> Drawn | None:
    """Through another type and back, or ending in it."""
    if x.is_complex():
        return drawn_from(
            rng,
            {
                "abs": lambda v: v.abs(),
                "real": lambda v: v.real,
                "view_as_real": torch.view_as_real,
            },
        )
    if not x.is_floating_point():
        return drawn_from(rng, {"float()": lambda v: v.float()})

    def cast(v: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (v @ v.mT).to(v.dtype)

    return drawn_from(
        rng,
        {
            "half and back": lambda v: v.half().to(v.dtype) * 2,
            "bfloat16 and back": lambda v: v.bfloat16().relu().to(v.dtype),
            "double and back": lambda v: (v.double() * 3).to(v.dtype),
            "double": lambda v: v.double(),
            "int and back": lambda v: (v * 4).round().int().to(v.dtype),
            "bool mask": lambda v: v * (v > 0),
            "fft": lambda v: torch.fft.rfft(v, dim=-1).abs(),
            "fft, a filter and back": lambda v: torch.fft.irfft(
                torch.fft.rfft(v) * 0.5, n=v.shape[-1]
            ),
            "complex": lambda v: torch.complex(v, -v),
            "complex product": lambda v: (
                (torch.complex(v, -v) * torch.complex(v, v).conj()).imag
            ),
            "autocast inside": cast,
            "type of itself": lambda v: v.type_as(v[:1]).to(v.dtype),
        },
    )


class Counting(nn.Module):
    """State in buffers: a count, and a running mean of what was seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean[1:].mul_(0.9).add_(0.1 * x.mean().clamp(-1, 1))
        return x + self.mean.sum() * 0.1 + (self.count > 2)


class Tied(nn.Module):
    """One weight in both directions, and one layer twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, 6, bias=False)
        self.same = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.same(self.same(self.into(x)).relu())
        return F.linear(hidden, self.into.weight.t())


class OnSizes(nn.Module):
    """Control flow on sizes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] % 2:
            x = self.layer(x)
        for _ in range(min(x.shape[0], 3)):
            x = torch.tanh(x + 0.1 * x.shape[-1])
        return x


class Doubled(nn.Module):
    """A layer whose hook changes what it gives."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 4)
        self.layer.register_forward_hook(twice)
        self.layer.register_forward_pre_hook(halved)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def twice(module: nn.Module, given: Any, made: Tensor) -> Tensor:
    return made * 2


def halved(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (given[0] / 2,)


@kind
def idiom(rng: random.Random, x: Tensor) -> Drawn | None:
    if x.ndim == 0 or x.dtype != torch.float32:
        return None
    width = x.shape[-1]
    choices: list[Callable[[], nn.Module]] = [
        Counting,
        lambda: Tied(width),
        lambda: OnSizes(width),
        lambda: Doubled(width),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(width, 3)),
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(width, min(width, 3))),
    ]
    made = rng.choice(choices)()
    return owned(f"{type(made).__name__}({width})", made)


@kind
def rare_layer(rng: random.Random, x: Tensor) -> Drawn | None:
    """Layers of three dimensions, cells, masked attention, decoders."""
    if x.dtype != torch.float32 or x.ndim < 2:
        return None
    width = x.shape[-1]
    if x.ndim == 2:
        cell = rng.choice([nn.LSTMCell, nn.GRUCell, nn.RNNCell])(width, 5)
        last = isinstance(cell, nn.LSTMCell) and rng.random() < 0.5

        def twice_on(m: nn.Module, v: Tensor) -> Tensor:
            made = m(v, m(v))
            return made if isinstance(made, Tensor) else made[last]

        return Drawn(name=f"{cell!r} twice", run=twice_on, layer=cell)
    if x.ndim == 5:
        channels = x.shape[1]
        made = rng.choice(
            [
                nn.Conv3d(
                    channels,
                    4,
                    rng.choice([1, 3]),
                    padding=1,
                    groups=rng.choice([1, channels]) if channels == 4 else 1,
                ),
                nn.BatchNorm3d(channels),
                nn.MaxPool3d(2, padding=1),
                nn.AdaptiveAvgPool3d(1),
                nn.ConvTranspose3d(channels, 2, 2, stride=2),
            ]
        )
        return owned(repr(made), made)
    if x.ndim == 4:
        choices: dict[str, Function] = {
            "unfold": lambda v: F.unfold(v, 2, padding=1),
            "unfold and fold": lambda v: F.fold(
                F.unfold(v, 3, padding=1), v.shape[-2:], 3, padding=1
            ),
            "grid_sample": lambda v: F.grid_sample(
                v,
                F.affine_grid(
                    torch.eye(2, 3, dtype=v.dtype).expand(len(v), -1, -1) * 0.8,
                    list(v.shape),
                    align_corners=False,
                ),
                align_corners=False,
            ),
            "interpolate bicubic": lambda v: F.interpolate(
                v, scale_factor=2, mode="bicubic"
            ),
            "upsample to size": lambda v: F.interpolate(v, size=(5, 4)),
            "avg over windows": lambda v: v.unfold(-1, 2, 1).mean(-1),
        }
        return drawn_from(rng, choices)

    def causal(v: Tensor) -> Tensor:
        mask = torch.ones(v.shape[1], v.shape[1], dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(v, v, v, attn_mask=mask)

    def padded(v: Tensor) -> Tensor:
        scores = v @ v.mT
        hidden = torch.arange(v.shape[1]) > v.shape[1] // 2
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v

    if rng.random() < 0.3 and width % 2 == 0:
        made = nn.TransformerDecoderLayer(width, 2, 8, batch_first=True)
        return Drawn(
            name=f"TransformerDecoderLayer({width})",
            run=lambda m, v: m(v, v),
            layer=made,
        )
    return drawn_from(
        rng,
        {
            "attention with a causal mask": causal,
            "attention with a padding mask": padded,
        },
    )
