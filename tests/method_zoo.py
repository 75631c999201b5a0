"""Small networks with every kind of layer that owns a weight, and the methods to try on
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tersify import Recipe, Rule
from tersify.methods import Method, from_table, registered


class TiedNet(nn.Module):
    """Token scores from the same matrix that embeds the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.embed(tokens).mean(1)))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.rnn = kind(5, 7, num_layers=2, batch_first=True)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def conv_net(conv: type[nn.Module], norm: type[nn.Module]) -> nn.Module:
    return nn.Sequential(
        conv(2, 6, 3, padding=1),
        norm(6),
        nn.ReLU(),
        conv(6, 4, 3),
        nn.Flatten(1),
        nn.LazyLinear(3),
    )


def images(dims: int) -> Tensor:
    return torch.randn(4, 2, *[5] * dims)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "conv1d": (lambda: conv_net(nn.Conv1d, nn.BatchNorm1d), lambda: images(1)),
    "conv2d": (lambda: conv_net(nn.Conv2d, nn.BatchNorm2d), lambda: images(2)),
    "conv3d": (lambda: conv_net(nn.Conv3d, nn.BatchNorm3d), lambda: images(3)),
    "linear": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)),
        lambda: torch.randn(4, 8),
    ),
    "tied": (TiedNet, lambda: torch.randint(0, 11, (4, 3))),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(4, 6, 5)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(4, 6, 5)),
}


def make(network: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    build, example = NETWORKS[network]
    model, x = build(), example()
    model(x)  # gives lazy layers their shapes
    return model, x


VARIANTS = [
    {"method": "ternary", "regime": "log", "spread": 0.2, "scale": "channel"},
    {
        "method": "ternary",
        "regime": "linear",
        "speed": 3.0,
        "cap": 1.0,
        "spread": 0.2,
        "scale": "tensor",
    },
    {"method": "twn", "per_channel": True},
    {"method": "twn", "exact": True},
    {"method": "twn", "exact": True, "per_channel": True},
    {
        "method": "ternary",
        "regime": "log",
        "speed": 9.0,
        "sparsity": 0.7,
        "spread": 0.2,
        "scale": "tensor",
    },
    {"method": "ec2t", "lam": 0.0},
    {"method": "ec2t", "sparsity": 0.6},
    {"method": "ec2t", "plain": True, "lam": 0.002},
    {"method": "binary", "stochastic": True},
    {"method": "binary", "scale": "channel"},
    {"method": "uniform", "bits": 3, "symmetric": False},
    {"method": "uniform", "bits": 4, "symmetric": False, "per_channel": True},
    {"method": "uniform", "bits": 2, "per_channel": True},
    {"method": "uniform", "bits": 4, "printed": True, "clip": 0.7},
    {
        "method": "lookup",
        "n": 2,
        "m": 6,
        "fit": "lloyd",
        "per_channel": True,
        "force_zero": True,
    },
    {"method": "lookup", "n": 3, "fit": "paper", "sign_in_code": True},
    {
        "method": "prune",
        "score": "movement",
        "head_start": 1.0,
        "lines": 0.5,
        "sparsity": 0.5,
        "every": 2,
    },
    {
        "method": "prune",
        "score": "soft-movement",
        "structure": "block-2x3",
        "lam": 30.0,
        "gain": 100.0,
    },
    {"method": "prune", "score": "taylor", "structure": "2:4", "schedule": "linear"},
    {
        "method": "prune",
        "score": "random",
        "scope": "row",
        "sparsity": 0.5,
        "schedule": "one-shot",
    },
    {
        "method": "prune",
        "structure": "row",
        "scope": "global",
        "sparsity": 0.3,
        "floor": 0.2,
        "schedule": "cyclic",
    },
    {
        "method": "prune",
        "structure": "row",
        "score": "movement",
        "count": 1,
        "end": 0.4,
    },
    {"method": "prune", "schedule": "frozen"},
    {
        "method": "energy",
        "search": "tempering",
        "stagnation": 1.0,
        "keep": 0.7,
        "count": "units",
        "bound": "exactly",
    },
]


def single_methods() -> list[Method]:
    return [cls() for cls in registered().values()] + [from_table(v) for v in VARIANTS]


def chains_of_two() -> list[tuple[Method, Method]]:
    return [(a(), b()) for a, b in itertools.product(registered().values(), repeat=2)]


def is_legal(chain: tuple[Method, ...]) -> bool:
    return all(
        not a.quantizes and (b.keeps_zeros or not b.quantizes)
        for a, b in itertools.pairwise(chain)
    )


def all_legal_chains() -> list[tuple[Method, ...]]:
    return [(m,) for m in single_methods()] + [
        c for c in chains_of_two() if is_legal(c)
    ]


def fits(chain: tuple[Method, ...], network: str) -> bool:
    """Whether the network has what the methods work on: units that may go, for those
    that drop units.
    """
    return network not in ("tied", "lstm", "gru") or not any(
        method.name == "energy" for method in chain
    )


def chain_id(chain: tuple[Method, ...]) -> str:
    words = []
    for method in chain:
        table = method.to_table()
        words.append(
            "-".join([table.pop("method"), *(f"{k}={v}" for k, v in table.items())])
        )
    return "+".join(words)


def recipe_of(chain: tuple[Method, ...], weights: str = "*") -> Recipe:
    return Recipe(rules=(Rule(weights=weights, methods=chain),))
