"""What a random module does with values besides layers: shapes, views, writes in place,
sums of values, constants.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from fuzz_steps import Drawn, kind, plain
from torch import Tensor, nn


def divisor(rng: random.Random, size: int) -> int:
    return rng.choice([k for k in range(1, size + 1) if size % k == 0])


@kind
def fold(rng: random.Random, x: Tensor) -> Drawn | None:
    """Axes into the batch, or the batch into axes."""
    if x.ndim < 2:
        return None
    width = divisor(rng, x.shape[-1])
    first = divisor(rng, x.shape[1])
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        "flatten(0, 1)": lambda v: v.flatten(0, 1),
        "flatten(1)": lambda v: v.flatten(1),
        "flatten()": lambda v: v.flatten(),
        f"reshape(-1, {width})": lambda v: v.reshape(-1, width),
        f"view(-1, {first}, *rest)": lambda v: v.contiguous().view(
            -1, first, *v.shape[2:]
        ),
        f"unflatten(1, ({first}, -1))": lambda v: v.unflatten(1, (first, -1)),
        f"unflatten(-1, (-1, {width}))": lambda v: v.unflatten(-1, (-1, width)),
        "reshape(2, -1)": lambda v: v.reshape(2, -1),
        "unflatten(0, (-1, 1))": lambda v: v.unflatten(0, (-1, 1)),
    }
    name = rng.choice(list(choices))
    return plain(name, choices[name])


@kind
def moved(rng: random.Random, x: Tensor) -> Drawn | None:
    if x.ndim < 2:
        return None
    axes = list(range(x.ndim))
    rng.shuffle(axes)
    a, b = rng.sample(range(x.ndim), 2)
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        f"permute({axes})": lambda v: v.permute(axes),
        f"transpose({a}, {b})": lambda v: v.transpose(a, b),
        f"movedim({a}, {b})": lambda v: v.movedim(a, b),
        f"flip({a})": lambda v: v.flip(a),
        f"roll(1, {a})": lambda v: v.roll(1, a),
        "mT": lambda v: v.mT,
    }
    name = rng.choice(list(choices))
    return plain(name, choices[name])


@kind
def part(rng: random.Random, x: Tensor) -> Drawn | None:
    if x.ndim == 0:
        return None
    axis = rng.randrange(x.ndim)
    size = x.shape[axis]
    start, step = rng.randrange(size), rng.choice([1, 1, 2])
    pieces = rng.choice([1, 2, 3])
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        f"[{start}::{step}] on axis {axis}": lambda v: v[
            (slice(None),) * axis + (slice(start, None, step),)
        ],
        f"[:-1] on axis {axis}": lambda v: v[
            (slice(None),) * axis + (slice(None, -1),)
        ],
        f"select({axis}, -1)": lambda v: v.select(axis, -1),
        f"chunk({pieces}, {axis})[-1]": lambda v: v.chunk(pieces, axis)[-1],
        f"split(2, {axis})[0]": lambda v: v.split(2, axis)[0],
        f"unbind({axis})[0]": lambda v: v.unbind(axis)[0],
        f"narrow({axis}, 0, 1)": lambda v: v.narrow(axis, 0, 1),
        "index_select": lambda v: v.index_select(axis, torch.tensor([0, 0])),
        "diagonal": lambda v: v.diagonal(dim1=-2, dim2=-1),
    }
    name = rng.choice(list(choices))
    return plain(name, choices[name])


@kind
def ones(rng: random.Random, x: Tensor) -> Drawn | None:
    """Axes of size one made, dropped and repeated."""
    axis = rng.randrange(-x.ndim - 1, x.ndim + 1)
    axis = max(axis, -x.ndim - 1)
    inside = min(axis, x.ndim - 1) if x.ndim else 0
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        f"unsqueeze({axis})": lambda v: v.unsqueeze(axis),
        f"squeeze({inside})": lambda v: v.squeeze(inside),
        f"unsqueeze({axis}).expand": lambda v: (u := v.unsqueeze(axis)).expand(
            [3 if place == axis % u.ndim else n for place, n in enumerate(u.shape)]
        ),
        f"repeat_interleave(2, {inside})": lambda v: v.repeat_interleave(2, inside),
        "squeeze()": lambda v: v.squeeze(),
    }
    name = rng.choice(list(choices))
    return plain(name, choices[name])


@kind
def reduced(rng: random.Random, x: Tensor) -> Drawn | None:
    if x.ndim == 0:
        return None
    axes = rng.sample(range(x.ndim), rng.randint(1, min(2, x.ndim)))
    keep = rng.random() < 0.5
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        f"mean({axes}, {keep})": lambda v: v.mean(axes, keepdim=keep),
        f"sum({axes}, {keep})": lambda v: v.sum(axes, keepdim=keep),
        f"amax({axes}, {keep})": lambda v: v.amax(axes, keepdim=keep),
        f"amin({axes}, {keep})": lambda v: v.amin(axes, keepdim=keep),
        f"norm({axes[0]}, {keep})": lambda v: torch.linalg.vector_norm(
            v, dim=axes[0], keepdim=keep
        ),
        f"logsumexp({axes})": lambda v: v.logsumexp(axes, keepdim=keep),
        f"cumsum({axes[0]})": lambda v: v.cumsum(axes[0]),
        "mean()": lambda v: v.mean(),
    }
    name = rng.choice(list(choices))
    return plain(name, choices[name])


@kind
def padded(rng: random.Random, x: Tensor) -> Drawn | None:
    if x.ndim < 2:
        return None
    pads = [
        rng.choice([0, 1, 2, -1]) for _ in range(2 * rng.choice([1, min(2, x.ndim)]))
    ]
    value = rng.choice([0.0, 0.5])
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        f"pad({pads}, {value})": lambda v: F.pad(v, pads, value=value),
        "interpolate nearest": lambda v: F.interpolate(
            v, scale_factor=2, mode="nearest"
        ),
        "interpolate linear": lambda v: F.interpolate(
            v,
            scale_factor=2,
            mode="linear" if v.ndim == 3 else "bilinear",
            align_corners=False,
        ),
        "pixel_shuffle": lambda v: F.pixel_shuffle(v, 2),
        "channel_shuffle": lambda v: F.channel_shuffle(v, 2),
        "pixel_unshuffle": lambda v: F.pixel_unshuffle(v, 2),
    }
    name = rng.choice(list(choices))
    return plain(name, choices[name])


@kind
def written(rng: random.Random, x: Tensor) -> Drawn | None:
    """A write in place, often through a view; what is returned is the value, a view of
    it, or something new.
    """
    if x.ndim == 0:
        return None
    axis = rng.randrange(x.ndim)
    place = (slice(None),) * axis + (
        rng.choice([0, -1, slice(None, None, 2), slice(1, None)]),
    )
    number = rng.choice([0.0, 1.0, -0.5])

    def set_item(v: Tensor) -> None:
        v[place] = number

    def copied(v: Tensor) -> None:
        v[place] = v[place].flip(-1) if v[place].ndim else 0.0

    choices: dict[str, Callable[[Tensor], object]] = {
        f"v[{place}] = {number}": set_item,
        f"v[{place}] = its own, flipped": copied,
        f"v[{place}].add_({number})": lambda v: v[place].add_(number),
        f"v[{place}].mul_(2)": lambda v: v[place].mul_(2),
        f"v[{place}].relu_()": lambda v: v[place].relu_(),
        "v.view(-1).relu_()": lambda v: v.view(-1).relu_(),
        "v.mul_(-1)": lambda v: v.mul_(-1),
        "v.add_(v.mean())": lambda v: v.add_(v.mean()),
        "v.transpose(0, -1).sub_(1)": lambda v: v.transpose(0, -1).sub_(1),
        "v.clamp_(-1, 1)": lambda v: v.clamp_(-1, 1),
        "v.masked_fill_(v > 0.3, 0.1)": lambda v: v.masked_fill_(v > 0.3, 0.1),
        "v.zero_()": lambda v: v.zero_(),
    }
    name = rng.choice(list(choices))
    give = rng.choice(["v", "v", "v * 1", "v[:1]"])

    def run(v: Tensor) -> Tensor:
        choices[name](v)
        return {"v": lambda: v, "v * 1": lambda: v * 1, "v[:1]": lambda: v[:1]}[give]()

    return plain(f"{name}; {give}", run)


@kind
def combined(rng: random.Random, x: Tensor) -> Drawn | None:
    """Two values: residuals, products, broadcasts, concatenations on any axis, matrix
    products.
    """
    axis = rng.randrange(max(1, x.ndim))
    choices: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "a + b": lambda a, b: a + b,
        "a - b": lambda a, b: a - b,
        "a * b": lambda a, b: a * b,
        "relu(a + b)": lambda a, b: torch.relu(a + b),
        "a.add_(b)": lambda a, b: a.add_(b),
        "a.mul_(b)": lambda a, b: a.mul_(b),
        "maximum(a, b)": torch.maximum,
        "a + mean of b": lambda a, b: a + b.mean(-1, keepdim=True),
        "a * sigmoid(mean of b)": lambda a, b: a * b.mean(-1, keepdim=True).sigmoid(),
        f"cat([a, b], {axis})": lambda a, b: torch.cat([a, b], axis),
        f"cat([a, a, b], {axis})": lambda a, b: torch.cat([a, a, b], axis),
        f"stack([a, b], {axis})": lambda a, b: torch.stack([a, b], axis),
        "a @ b.mT": lambda a, b: a @ b.mT,
        "where(a > b, a, -b)": lambda a, b: torch.where(a > b, a, -b),
        "lerp": lambda a, b: torch.lerp(a, b, 0.3),
        "(a + b) * 2": lambda a, b: (a + b) * 2,
        "(a + b) + 1": lambda a, b: (a + b) + 1,
    }
    name = rng.choice(list(choices))
    return plain(name, choices[name], seconds=1)


class Operand(nn.Module):
    """A constant beside a value: a buffer or a parameter."""

    def __init__(self, value: Tensor, learned: bool) -> None:
        super().__init__()
        if learned:
            self.value = nn.Parameter(value)
        else:
            self.register_buffer("value", value)


@kind
def constant(rng: random.Random, x: Tensor) -> Drawn | None:
    if x.ndim == 0:
        return None
    axis = rng.randrange(x.ndim)
    last = [x.shape[-1]]
    one_axis = [n if place == axis else 1 for place, n in enumerate(x.shape)]
    item = list(x.shape[1:])
    shape = rng.choice([last, one_axis, item, [], [1], [3, *([1] * x.ndim)]])
    made = Operand(torch.randn(shape), rng.random() < 0.5)
    choices: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "v + c": lambda v, c: v + c,
        "v * c": lambda v, c: v * c,
        "c - v": lambda v, c: c - v,
        "v / (1 + c²)": lambda v, c: v / (1 + c * c),
        "relu(v * c)": lambda v, c: torch.relu(v * c),
        "cat with c": lambda v, c: torch.cat([v, c.expand_as(v)], 0),
        "v + 3": lambda v, c: v + 3,
        "v * -2": lambda v, c: v * -2,
        "1 - v": lambda v, c: 1 - v,
        "v ** 2": lambda v, c: v**2,
        "tanh(v) / 3": lambda v, c: torch.tanh(v) / 3,
        "exp(-v²)": lambda v, c: torch.exp(-v * v),
    }
    name = rng.choice(list(choices))
    return Drawn(
        name=f"{name} (c of {shape})",
        run=lambda m, v: choices[name](v, m.value),
        layer=made,
    )
