"""Networks with plans, small enough to lower in a second."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tersify


def ternary_(model: nn.Module, *, zeros: float = 0.6) -> nn.Module:
    """Convolutions and linear layers of signs with one scale, as methods leave them."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv1d, nn.Linear)):
            signs = (
                torch.randint(0, 2, module.weight.shape, generator=generator) * 2.0 - 1
            )
            signs[torch.rand(module.weight.shape, generator=generator) < zeros] = 0
            module.weight.data = signs * 0.07
    return model.eval()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.one = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.two = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.head = nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.one(x))
        return self.head(torch.relu(self.two(x)).mean((2, 3)))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.steps = nn.LSTM(24, 16, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.steps(self.words(ids))[0]))


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        all_three = self.inside(x)
        q, k, v = (
            all_three[..., 32 * i : 32 * i + 32].unflatten(-1, (4, 8)).transpose(1, 2)
            for i in range(3)
        )
        made = nn.functional.scaled_dot_product_attention(q, k, v)
        return torch.softmax(self.out(made.transpose(1, 2).flatten(2)), -1)


class Curves(nn.Module):
    """exp, log, the log of a sigmoid and a root, between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = (self.first(x).clamp(-3, 3).exp() + 0.5).log()
        x = nn.functional.logsigmoid(self.second(x))
        return self.head((x * x + 0.25).sqrt())


class Shares(nn.Module):
    """A linear layer with the numbers of a convolution, and one with their transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3)
        self.wide = nn.Conv2d(32, 48, 1)
        self.back = nn.Linear(48, 32)
        self.line = nn.Linear(32, 48)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.wide(torch.relu(self.first(x)))).mean((2, 3))
        return self.line(torch.relu(self.back(x)))


def sharing_(model: Shares) -> Shares:
    model.line.weight.data = model.wide.weight.data[:, :, 0, 0]
    model.back.weight.data = model.line.weight.data.t()
    return model


class Raises(nn.Module):
    """A transposed convolution, and a weight that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.raised = nn.ConvTranspose2d(3, 5, (3, 4), (2, 3), 1)
        self.weight = nn.Parameter(torch.randn(6, 5))
        self.gains = nn.Parameter(torch.rand(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        made = torch.relu(self.raised(x)).mean((2, 3))
        return nn.functional.linear(made, self.weight * self.gains)


def little_cnn() -> nn.Module:
    """Pools and a linear layer that is large enough for 8-bit activations."""
    return ternary_(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(3, 2, padding=1),
            nn.Flatten(),
            nn.Linear(576, 32),
            nn.ReLU(),
            nn.Linear(32, 4),
        )
    )


def seeded(make: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return model.eval()


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(3)
    images = torch.randn(2, 3, 12, 12)
    return {
        "ternary": (ternary_(seeded(Block)), images),
        "dense": (seeded(Block), images),
        "tagger": (seeded(Tagger), torch.randint(0, 50, (2, 9))),
        "attention": (seeded(Attends), torch.randn(2, 6, 32)),
        "raises": (seeded(Raises), images),
        "curves": (seeded(Curves), torch.randn(2, 12)),
        "shares": (sharing_(seeded(Shares)), images),
        "shares signs": (sharing_(ternary_(seeded(Shares))), images),
        "pools": (
            ternary_(
                nn.Sequential(
                    nn.Conv2d(3, 8, 5, padding=2),
                    nn.MaxPool2d(2),
                    nn.GELU(),
                    nn.Conv2d(8, 8, 3, groups=4),
                    nn.AvgPool2d(2),
                    nn.Flatten(),
                    nn.Linear(32, 3),
                )
            ),
            images,
        ),
    }


def packed(model: nn.Module) -> tersify.CompressedModel:
    return tersify.pack(model)
