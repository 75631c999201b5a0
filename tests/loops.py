"""A plain training loop as a user would write it, with a way to stop and go on."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import Tensor, nn

import tersify
from tersify import Recipe, Session

STEPS = 6


def start(model: nn.Module, recipe: Recipe) -> tuple[Session, torch.optim.Optimizer]:
    session = tersify.attach(model, recipe, epochs=2, steps_per_epoch=STEPS // 2)
    return session, torch.optim.Adam(session.param_groups(weight_decay=1e-3), lr=0.05)


def labels(x: Tensor) -> Tensor:
    """Classes for the samples of a batch; only searches look at them."""
    return torch.arange(len(x)) % 3


def train(
    model: nn.Module,
    session: Session,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    steps: int,
) -> None:
    model.train()
    for _ in range(steps):
        session.step(x, labels(x))
        loss = model(x).square().mean() + session.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def checkpoint(
    model: nn.Module, session: Session, optimizer: torch.optim.Optimizer
) -> bytes:
    state = {
        "model": model.state_dict(),
        "session": session.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def restore(
    saved: bytes, model: nn.Module, session: Session, optimizer: torch.optim.Optimizer
) -> None:
    state: dict[str, Any] = torch.load(io.BytesIO(saved), weights_only=True)
    model.load_state_dict(state["model"])
    session.load_state_dict(state["session"])
    optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    torch.set_rng_state(state["rng"])
