"""A small network and a session that searches it, for the tests of energy-based
pruning.
"""

import torch
import torch.nn.functional as F
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Energy


class Residual(nn.Module):
    """Convolutions with and without BatchNorm, a shortcut, and a hidden linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.hidden = nn.Linear(8, 12)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.head(self.drop(F.relu(self.hidden(x.mean((2, 3))))))


def trained_a_little(dtype=torch.float32):
    torch.manual_seed(0)
    model = Residual().to(dtype)
    for _ in range(3):
        # running statistics that are not the first ones
        model(torch.randn(16, 3, 6, 6, dtype=dtype))
    with torch.no_grad():
        for norm in (model.bn1, model.bn2):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_()
    return model


def batch(dtype=torch.float32, size=6):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(size, 3, 6, 6, generator=generator, dtype=dtype), torch.arange(
        size
    ) % 4


def session_of(model, epochs=10, steps_per_epoch=2, example=None, **settings):
    recipe = Recipe(rules=[Rule(methods=[Energy(**settings)])])
    return tersify.attach(
        model, recipe, epochs=epochs, steps_per_epoch=steps_per_epoch, example=example
    )


def work_of(session):
    return session._work[0].bound.shared


def evaluator_of(session, model, inputs, targets):
    session.step(inputs, targets)
    return work_of(session)._engine.evaluator
