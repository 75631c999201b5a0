"""Small networks with every way in which units meet, beside those of the lab."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.lab import network


class Concat(nn.Module):
    """Two branches side by side, batch norm over both, then a flattened linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 5, 3, padding=1)
        self.right = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(9)
        self.head = nn.Linear(9 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(torch.cat([self.left(x), self.right(x)], 1))
        return self.head(F.adaptive_avg_pool2d(F.gelu(out), 2).flatten(1))


class Mobile(nn.Module):
    """Widen, depthwise, squeeze-and-excite gate, narrow, residual addition."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.widen = nn.Conv2d(6, 12, 1)
        self.deep = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.norm = nn.BatchNorm2d(12)
        self.squeeze = nn.Conv2d(12, 4, 1)
        self.excite = nn.Conv2d(4, 12, 1)
        self.narrow = nn.Conv2d(12, 6, 1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out = F.hardswish(self.norm(self.deep(F.relu6(self.widen(x)))))
        out = out * torch.sigmoid(
            self.excite(F.relu(self.squeeze(out.mean((2, 3), keepdim=True))))
        )
        x += self.narrow(out)
        return self.head(x.mean((2, 3)))


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 12, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(12, 5, 2, stride=2)
        self.last = nn.Conv2d(5, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(
            F.leaky_relu(self.up(F.relu(self.grouped(F.relu(self.first(x))))))
        )


class SelfAttention(nn.Module):
    """Attention from plain linear layers, with eager products, a scale per channel and
    a mask.
    """

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Linear(12, 12) for _ in range(4)
        )
        self.gamma = nn.Parameter(torch.rand(12))
        self.norm = nn.LayerNorm(12)
        self.up, self.down = nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            f(x).view(batch, tokens, -1, 4).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-2, -1) / 2).masked_fill(~mask, -1e4).softmax(-1)
        x = x + self.out(
            (scores @ v).transpose(1, 2).reshape(batch, tokens, -1) * self.gamma
        )
        return x + self.down(F.silu(self.up(self.norm(x))))


def encoder() -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 16),
        nn.TransformerEncoderLayer(16, 4, 24, batch_first=True),
        nn.Linear(16, 3),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "digits-cnn": (lambda: network("digits-cnn", width=0.25), (2, 1, 8, 8)),
    "resnet20": (lambda: network("resnet20", width=0.5, depth=0.4), (2, 3, 16, 16)),
    "resnet20-star": (
        lambda: network("resnet20-star", inflate=1, width=0.5),
        (2, 3, 16, 16),
    ),
    "resnet18": (lambda: network("resnet18", width=0.125), (2, 3, 32, 32)),
    "resnet50": (lambda: network("resnet50", width=0.0625, depth=0.5), (2, 3, 32, 32)),
    "vgg16": (lambda: network("vgg16", width=0.0625), (2, 3, 32, 32)),
    "alexnet": (lambda: network("alexnet", width=0.0625, resize=64), (2, 3, 32, 32)),
    "squeezenet": (
        lambda: network("squeezenet1_1", width=0.125, resize=0),
        (2, 3, 33, 33),
    ),
    "concat": (Concat, (2, 3, 8, 8)),
    "mobile": (Mobile, (2, 3, 8, 8)),
    "grouped": (Grouped, (2, 3, 8, 8)),
    "attention": (SelfAttention, (2, 5, 12)),
    "encoder": (encoder, (2, 5, 7)),
}


def make(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """The network with lively norms: fresh ones would hide a γ or a mean that stayed
    behind.
    """
    torch.manual_seed(seed)
    build, shape = NETS[name]
    model = build().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor, low in (
                (module.weight, 0.5),
                (module.bias, -0.5),
                (module.running_mean, -0.5),
            ):
                tensor.data.uniform_(low, low + 1)
            module.running_var.data.uniform_(0.5, 2)
    return model, torch.randn(shape)
