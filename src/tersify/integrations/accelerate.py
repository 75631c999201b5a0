"""Accelerate: `session = attach(accelerator, model, "ternary-target", steps=1000)`, and
the loop stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

import tersify
from tersify.calibration import Calibration
from tersify.integrations.compression import (
    add_penalty_,
    check_optimizer,
    refuse_cut_weights,
    refuse_scaled_penalty,
    refuse_searches,
    spare_learned_,
)
from tersify.recipe import Recipe
from tersify.session import Session
from tersify.units import Example


def attach(
    accelerator: Accelerator,
    model: nn.Module,
    recipe: str | Path | Recipe,
    *,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    steps: int | None = None,
    calibration: Calibration | Iterable[tuple[Any, Any]] | None = None,
    example: Example | None = None,
    **settings: Any,
) -> Session:
    """Bind a recipe to a model before its optimizer is made and `accelerator.prepare`
    is called.

    From then on the loop drives the session: it moves on at the first forward pass of
    training after each step of the optimizer, the recipe's own term joins the
    gradients, and `save_state` and `load_state` have it with the rest. Call neither
    `session.step` nor `session.penalty`. Steps are those of the optimizer. At the end
    `session.pack()` gives what was made. The other arguments are those of
    `tersify.attach`.
    """
    refuse_cut_weights(accelerator.distributed_type)
    chosen = Recipe.load(recipe).with_settings(settings)
    refuse_searches(chosen)
    session = tersify.attach(
        model,
        chosen,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        steps=steps,
        calibration=calibration,
        example=example,
    )
    if accelerator.scaler is not None:
        refuse_scaled_penalty(session, "fp16")
    accelerator.register_for_checkpointing(_Driver(accelerator, session))
    return session


class _Driver:
    """Moves a session on as the loop of somebody else goes, of which it sees forward
    passes and optimizer steps.
    """

    def __init__(self, accelerator: Accelerator, session: Session) -> None:
        self._accelerator, self._session = accelerator, session
        self._is_due, self._knows_optimizer = True, False
        session.model.register_forward_pre_hook(self._before_forward)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_forward(self, module: nn.Module, args: Any) -> None:
        training = module.training and torch.is_grad_enabled()
        if not (self._is_due and training and self._session.sites):
            return
        if not self._knows_optimizer:
            self._watch(self._optimizer())
        self._is_due = False
        self._session.step()

    def _optimizer(self) -> Optimizer:
        """The one that trains the model, which does not exist before the first forward
        pass.
        """
        prepared = [wrapper.optimizer for wrapper in self._accelerator._optimizers]
        if len(prepared) != 1:
            raise ValueError(
                f"a recipe moves on with one optimizer, and {len(prepared)} went through accelerator.prepare; "
                "make that one"
            )
        return prepared[0]

    def _watch(self, optimizer: Optimizer) -> None:
        check_optimizer(optimizer, self._session)
        self._knows_optimizer = True
        optimizer.register_step_pre_hook(lambda *_: add_penalty_(self._session))
        spare_learned_(optimizer, self._session)
        optimizer.register_step_post_hook(self._after_step)

    def _after_step(self, *_: Any) -> None:
        self._is_due = True

    def state_dict(self) -> dict[str, Any]:
        return {"session": self._session.state_dict(), "is_due": self._is_due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._session.load_state_dict(state["session"])
        self._is_due = state["is_due"]
