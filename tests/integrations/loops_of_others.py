"""One small training, as a plain loop and by each library; what they leave must be the
same.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tersify
from tersify import CompressedModel, Recipe, Rule
from tersify.methods import from_table

BATCH, SAMPLES, EPOCHS = 8, 44, 3  # the last batch of an epoch is short
STEPS = EPOCHS * -(-SAMPLES // BATCH)
RATE, DECAY = 0.01, 0.3

# Schedules, learned levels, and a term of the method's own in the loss.
METHODS = {
    "ternary-target": from_table({"method": "ternary-target", "sparsity": 0.7}),
    "ttq": from_table({"method": "ttq"}),
    "soft-movement": from_table(
        {"method": "prune", "score": "soft-movement", "lam": 3.0}
    ),
    "agp": from_table({"method": "prune", "sparsity": 0.5}),
}


def recipe(name: str) -> Recipe:
    return Recipe(rules=[Rule(methods=[METHODS[name]])])


def network() -> nn.Sequential:
    """Without a bias before the batch norm: its gradient is nothing but rounding, of
    which Adam makes full steps.
    """
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
    )


def samples() -> tuple[Tensor, Tensor]:
    x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
    return x, x.abs().sum(1).mul(0.7).long() % 3


def loader() -> DataLoader:
    return DataLoader(TensorDataset(*samples()), BATCH)


def plain_loop(name: str, *, accumulate: int = 1) -> CompressedModel:
    model, batches = network(), list(loader())
    windows = [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
    session = tersify.attach(model, recipe(name), steps=EPOCHS * len(windows))
    optimizer = torch.optim.AdamW(
        session.param_groups(weight_decay=DECAY, fused=False), lr=RATE
    )
    for window in windows * EPOCHS:
        session.step()
        for x, y in window:
            (F.cross_entropy(model(x), y) / accumulate).backward()
        session.penalty().backward() if session.penalty().requires_grad else None
        optimizer.step()
        optimizer.zero_grad()
    return session.pack()


def same(a: CompressedModel, b: CompressedModel) -> bool:
    mine, theirs = a.state_dict(), b.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[name], theirs[name]) for name in mine
    )


def near(a: CompressedModel, b: CompressedModel) -> bool:
    """Sums of gradients may be rounded in another order."""
    mine, theirs = a.state_dict(), b.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.allclose(mine[name].float(), theirs[name].float(), atol=1e-4)
        for name in mine
    )


def loads_plainly(path: Path, packed: CompressedModel, into: nn.Module) -> bool:
    state = tersify.load(path, into=into).state_dict()
    return all(
        torch.equal(state[name], value) for name, value in packed.state_dict().items()
    )
