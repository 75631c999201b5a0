"""Ternary networks without curves, which int8 answers with the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable

import torch
from plan_networks import ternary_
from torch import Tensor, nn
from torch.nn import functional as F

Forward = Callable[["Two", Tensor], Tensor]


class Two(nn.Module):
    """Two convolutions and a head, put together by a function."""

    def __init__(self, forward: Forward, *, kernel: int = 3, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, kernel, padding=kernel // 2, groups=groups)
        self.head = nn.Linear(16, 5)
        self.slopes = nn.Parameter(torch.rand(16))
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, torch.relu(self.first(x)))


def _averaged(m: Two, x: Tensor) -> Tensor:
    return m.head(torch.relu(m.second(x)).mean((2, 3)))


def _pooled(m: Two, x: Tensor) -> Tensor:
    return m.head(F.max_pool2d(torch.relu(m.second(x)), 2).mean((2, 3)))


def _gated(m: Two, x: Tensor) -> Tensor:
    gate = F.hardsigmoid(m.second(x.mean((2, 3), keepdim=True)))
    return m.head((x * gate).mean((2, 3)))


def _one_axis(m: Two, x: Tensor) -> Tensor:
    return torch.relu(m.second(x)).mean(2)


def _joined(m: Two, x: Tensor) -> Tensor:
    made = torch.cat([F.pad(x[..., 1:], (1, 0)), m.second(x)], 1)
    return F.avg_pool2d(made, 3, 2)


def _leaky(m: Two, x: Tensor) -> Tensor:
    return m.head(F.leaky_relu(m.second(x) + x, 0.1).mean((2, 3)))


def _hard_swish(m: Two, x: Tensor) -> Tensor:
    return F.hardswish(m.second(F.hardswish(m.second(x))))


def _sloped(m: Two, x: Tensor) -> Tensor:
    return m.second(F.prelu(m.second(x), m.slopes))


def _steps(*tail: nn.Module) -> nn.Module:
    first, second = nn.Conv1d(8, 16, 7, 2, 3), nn.Conv1d(16, 16, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *tail)


def _normed() -> nn.Module:
    first, second = nn.Linear(64, 512), nn.Linear(512, 512)
    front = (first, nn.ReLU(), second, nn.ReLU())
    return nn.Sequential(*front, nn.LayerNorm(512), nn.Linear(512, 5))


def ternary_networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """By name; the second is the shape of one input."""
    torch.manual_seed(2)
    image, sound = (3, 14, 14), (8, 50)
    last = (nn.AdaptiveAvgPool1d(1), nn.Flatten())
    made: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "steps": (_steps(*last), sound),
        "steps and a head": (_steps(*last, nn.Linear(16, 5)), sound),
        "windows": (_steps(nn.AvgPool1d(5), nn.Flatten()), sound),
        "pooled": (Two(_pooled), image),
        "gated": (Two(_gated), image),
        "one axis": (Two(_one_axis), image),
        # too many taps for sums of 16 bits: it stays with floats
        "large windows": (Two(_averaged, kernel=13), image),
        "groups": (Two(_averaged, groups=16), image),
        "joined": (Two(_joined), image),
        "leaky": (Two(_leaky), image),
        "hard swish": (Two(_hard_swish), image),
        "sloped": (Two(_sloped), image),
        "normed": (_normed(), (64,)),
        "normed groups": (Two(lambda m, x: F.group_norm(m.second(x), 4)), image),
    }
    found = {name: (ternary_(model), shape) for name, (model, shape) in made.items()}
    few_zeros = ternary_(Two(_averaged), zeros=0.1)
    return {**found, "few zeros": (few_zeros, image)}
