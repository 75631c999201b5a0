"""The layers and functions that a random module is built of: each draws itself for one
value it is shown.

A step reads values by their place and never remembers sizes of the example where the
module could ask the value itself, so that a module built for one batch and length
mostly runs for others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of a module: what it is called, which values it reads, the layer it
    owns, and what it does with them.
    """

    name: str
    reads: tuple[int, ...]
    run: Callable[..., Tensor]
    layer: nn.Module | None = None


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What a kind makes of the values it is shown."""

    name: str
    run: Callable[..., Tensor]
    layer: nn.Module | None = None
    seconds: int = 0  # how many further values it reads


Kind = Callable[[random.Random, Tensor], "Drawn | None"]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


def owned(name: str, layer: nn.Module) -> Drawn:
    """A layer called on the value as it is."""
    return Drawn(name=name, run=lambda m, x: m(x), layer=layer)


def plain(name: str, run: Callable[..., Tensor], seconds: int = 0) -> Drawn:
    return Drawn(name=name, run=lambda m, *values: run(*values), seconds=seconds)


def spatial(x: Tensor) -> int | None:
    """How many axes lie behind the channels: 1 or 2; an input without a batch has one
    axis less.
    """
    return {2: 1, 3: 1, 4: 2}.get(x.ndim)


@kind
def conv(rng: random.Random, x: Tensor) -> Drawn | None:
    dims = spatial(x)
    if dims is None or not x.is_floating_point():
        return None
    if x.ndim == 3 and rng.random() < 0.3:
        dims = 2  # an image without a batch
    channels = x.shape[-1 - dims]
    divisors = [g for g in (1, 2, 3, 4, channels) if channels % g == 0]
    groups = rng.choice([1, 1, 1, *divisors])
    width = (
        groups * rng.choice([1, 1, 2, 3]) if groups > 1 else rng.choice([1, 3, 8, 17])
    )
    kernel = tuple(rng.choice([1, 1, 2, 3, 3, 5]) for _ in range(dims))
    options = {
        "stride": tuple(rng.choice([1, 1, 1, 2, 3]) for _ in range(dims)),
        "padding": rng.choice([0, 1, 1, 2, tuple(k // 2 for k in kernel)]),
        "dilation": tuple(rng.choice([1, 1, 1, 2]) for _ in range(dims)),
        "bias": rng.random() < 0.7,
    }
    if options["padding"] and rng.random() < 0.1:
        options["padding_mode"] = rng.choice(["reflect", "replicate", "circular"])
    made = (nn.Conv1d if dims == 1 else nn.Conv2d)(
        channels, width, kernel, groups=groups, **options
    )
    return owned(repr(made), made)


@kind
def transposed_conv(rng: random.Random, x: Tensor) -> Drawn | None:
    dims = spatial(x)
    if dims is None:
        return None
    channels = x.shape[-1 - dims]
    groups = rng.choice([1, 1, channels])
    stride = rng.choice([1, 2, 3])
    options = {
        "stride": stride,
        "padding": rng.choice([0, 1]),
        "output_padding": rng.choice([0, min(1, stride - 1)]),
    }
    kind_of = nn.ConvTranspose1d if dims == 1 else nn.ConvTranspose2d
    made = kind_of(
        channels,
        groups * rng.choice([1, 2, 5]),
        rng.choice([2, 3, 4]),
        groups=groups,
        **options,
    )
    return owned(repr(made), made)


@kind
def linear(rng: random.Random, x: Tensor) -> Drawn | None:
    made = nn.Linear(
        x.shape[-1], rng.choice([1, 2, 5, 8, 16, 33]), bias=rng.random() < 0.7
    )
    return owned(repr(made), made)


@kind
def norm(rng: random.Random, x: Tensor) -> Drawn | None:
    channels = x.shape[1] if x.ndim > 1 else x.shape[0]
    groups = rng.choice([g for g in (1, 2, 3, channels) if channels % g == 0])
    affine = rng.random() < 0.7
    batch_norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}.get(
        x.ndim, nn.Identity
    )
    instance_norm = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d}.get(x.ndim)
    choices: list[Callable[[], nn.Module]] = [
        lambda: nn.LayerNorm(
            x.shape[-rng.choice([1, min(2, x.ndim)]) :], elementwise_affine=affine
        ),
        lambda: nn.GroupNorm(groups, channels, affine=affine),
        lambda: nn.RMSNorm(x.shape[-1], elementwise_affine=affine, eps=1e-5),
        lambda: nn.LocalResponseNorm(rng.choice([1, 3])),
    ]
    if x.ndim in (2, 3, 4):
        choices += [lambda: batch_norm(channels, affine=affine)] * 4
    if instance_norm:
        choices += [
            lambda: instance_norm(
                channels, affine=affine, track_running_stats=rng.random() < 0.3
            )
        ]
    made = rng.choice(choices)()
    return owned(repr(made), made)


@kind
def pool(rng: random.Random, x: Tensor) -> Drawn | None:
    dims = spatial(x)
    if dims is None:
        return None
    if x.ndim == 3 and rng.random() < 0.3:
        dims = 2
    window, stride = rng.choice([2, 3]), rng.choice([1, 2, 3])
    padding, ceil = rng.choice([0, 0, 1]), rng.random() < 0.4
    two = dims == 2
    out = rng.choice([1, 1, 2, 3])
    choices = [
        (nn.MaxPool2d if two else nn.MaxPool1d)(
            window, stride, padding, ceil_mode=ceil
        ),
        (nn.AvgPool2d if two else nn.AvgPool1d)(
            window,
            stride,
            padding,
            ceil_mode=ceil,
            count_include_pad=rng.random() < 0.5,
        ),
        (nn.AdaptiveAvgPool2d if two else nn.AdaptiveAvgPool1d)(out),
        (nn.AdaptiveMaxPool2d if two else nn.AdaptiveMaxPool1d)(out),
        (nn.LPPool2d if two else nn.LPPool1d)(2, window, stride, ceil_mode=ceil),
    ]
    made = rng.choice(choices)
    return owned(repr(made), made)


ACTIVATIONS: list[Callable[[random.Random], nn.Module]] = [
    *([lambda rng: nn.ReLU(inplace=rng.random() < 0.4)] * 4),
    lambda rng: nn.ReLU6(inplace=rng.random() < 0.4),
    lambda rng: nn.Hardtanh(-0.5, 0.7, inplace=rng.random() < 0.4),
    lambda rng: nn.LeakyReLU(rng.choice([0.01, 0.3, -0.2]), inplace=rng.random() < 0.4),
    lambda rng: nn.ELU(inplace=rng.random() < 0.4),
    lambda rng: nn.SELU(inplace=rng.random() < 0.4),
    lambda rng: nn.CELU(0.5, inplace=rng.random() < 0.4),
    lambda rng: nn.SiLU(inplace=rng.random() < 0.4),
    lambda rng: nn.Hardswish(inplace=rng.random() < 0.4),
    lambda rng: nn.Hardsigmoid(inplace=rng.random() < 0.4),
    lambda rng: nn.Threshold(0.1, -0.3, inplace=rng.random() < 0.4),
    lambda rng: nn.Dropout(0.5, inplace=rng.random() < 0.4),
    lambda rng: nn.Mish(),
    lambda rng: nn.GELU(approximate=rng.choice(["none", "tanh"])),
    lambda rng: nn.Sigmoid(),
    lambda rng: nn.LogSigmoid(),
    lambda rng: nn.Tanh(),
    lambda rng: nn.Softplus(beta=rng.choice([1, 2])),
    lambda rng: nn.Softsign(),
    lambda rng: nn.Tanhshrink(),
    lambda rng: nn.PReLU(),
    lambda rng: nn.Identity(),
]


@kind
def activation(rng: random.Random, x: Tensor) -> Drawn | None:
    made = rng.choice(ACTIVATIONS)(rng)
    return owned(repr(made), made)


@kind
def channel_activation(rng: random.Random, x: Tensor) -> Drawn | None:
    if x.ndim < 2:
        return None
    choices = [nn.PReLU(x.shape[1])]
    if x.shape[-1] % 2 == 0:
        choices += [nn.GLU(-1)]
    made = rng.choice(choices)
    return owned(repr(made), made)


@kind
def softmax(rng: random.Random, x: Tensor) -> Drawn | None:
    axis = rng.randrange(-x.ndim, x.ndim)
    function = rng.choice([F.softmax, F.softmax, F.log_softmax, F.softmin])
    return plain(f"{function.__name__}(dim={axis})", lambda v: function(v, dim=axis))


@kind
def recurrent(rng: random.Random, x: Tensor) -> Drawn | None:
    if x.ndim not in (2, 3):
        return None
    layer = rng.choice([nn.LSTM, nn.LSTM, nn.GRU, nn.RNN])
    made = layer(
        x.shape[-1],
        rng.choice([1, 4, 7]),
        num_layers=rng.choice([1, 1, 2]),
        bidirectional=rng.random() < 0.4,
        batch_first=rng.random() < 0.7,
        bias=rng.random() < 0.8,
    )
    first = torch.randn(made.num_layers * (1 + made.bidirectional), 1, made.hidden_size)

    def learned(m: nn.Module, v: Tensor) -> Tensor:
        batch = v.shape[0 if m.batch_first else 1]
        state = first.expand(-1, batch, -1).contiguous()
        return m(v, (state, state * 0) if isinstance(m, nn.LSTM) else state)[0]

    runs: dict[str, Callable[..., Tensor]] = {
        "states": lambda m, v: m(v)[0],
        "last state": lambda m, v: m(v)[1][0],
        "last of all": lambda m, v: m(v)[1][-1],
        "gone on": lambda m, v: m(v, m(v)[1])[0],
        "from a learned state": learned,
    }
    name = rng.choice(["states", *runs] if x.ndim == 3 else ["states", "gone on"])
    return Drawn(name=f"{made!r}, {name}", run=runs[name], layer=made)


@kind
def attention(rng: random.Random, x: Tensor) -> Drawn | None:
    if x.ndim != 3:
        return None
    width = x.shape[-1]
    heads = rng.choice([h for h in (1, 2, 4) if width % h == 0])
    causal = rng.random() < 0.3
    if rng.random() < 0.5:
        made = nn.MultiheadAttention(
            width, heads, batch_first=rng.random() < 0.7, bias=rng.random() < 0.7
        )
        return Drawn(
            name=repr(made),
            run=lambda m, v: m(v, v, v, need_weights=False)[0],
            layer=made,
        )

    def scaled(v: Tensor) -> Tensor:
        split = v.unflatten(-1, (heads, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(split, split, split, is_causal=causal)
        return mixed.transpose(1, 2).flatten(2)

    def by_hand(v: Tensor) -> Tensor:
        q, k, w = v.repeat(1, 1, 3).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q * 0.5) @ k.transpose(-2, -1)
        later = torch.ones(v.shape[1], v.shape[1], dtype=torch.bool).triu(1)
        if causal:
            scores = scores.masked_fill(later, float("-inf"))
        elif biased:
            scores = later * -0.7 + scores / 3
        return (scores.softmax(-1) @ w).transpose(1, 2).flatten(2)

    biased = rng.random() < 0.5
    if rng.random() < 0.5:
        name = f"attention by hand(heads={heads}, causal={causal}, biased={biased})"
        return plain(name, by_hand)
    return plain(f"attention(heads={heads}, causal={causal})", scaled)


@kind
def encoder_layer(rng: random.Random, x: Tensor) -> Drawn | None:
    if x.ndim != 3 or x.shape[-1] % 2:
        return None
    made = nn.TransformerEncoderLayer(
        x.shape[-1],
        2,
        8,
        batch_first=rng.random() < 0.7,
        norm_first=rng.random() < 0.5,
        activation="gelu",
    )
    return owned(f"TransformerEncoderLayer({x.shape[-1]})", made)
