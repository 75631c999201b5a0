"""What the integrations share: a recipe that waits for its model, and an optimizer that
another program made.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from tersify import codec
from tersify.calibration import Calibration
from tersify.recipe import Recipe, training_length
from tersify.session import Session
from tersify.tensor import CompressedModel
from tersify.units import Example

_CUT_UP = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "TP")  # Accelerate's names


class Compression:
    """A recipe, from the model to the file. A mistake in it is told at birth, not after
    hours of training.
    """

    def __init__(
        self,
        recipe: str | Path | Recipe,
        settings: dict[str, Any],
        *,
        out: str | Path | None,
        calibration: Calibration | Iterable[tuple[Any, Any]] | None,
        example: Example | None,
        gives_batches: bool,
    ) -> None:
        self.recipe = Recipe.load(recipe).with_settings(settings)
        self.out = None if out is None else Path(out)
        self.session: Session | None = None
        self.packed: CompressedModel | None = None
        self._calibration = None if calibration is None else Calibration.of(calibration)
        self._example = example
        self._is_over = False
        if self.out is not None and (self.out.is_dir() or not self.out.parent.is_dir()):
            raise ValueError(
                f"out must be a file in a folder that is there, got {str(out)!r}; make the folder first"
            )
        if not gives_batches:
            refuse_searches(self.recipe)

    def attach(self, model: nn.Module) -> Session:
        """The session of the model; its length is told when training begins."""
        if self._is_over:
            raise ValueError(
                "this training is over and its weights are final; continue with a new callback"
            )
        if self.session is None:
            self.session = Session(
                model,
                self.recipe,
                epochs=1,
                steps_per_epoch=1,
                calibration=self._calibration,
                example=self._example,
            )
        elif self.session.model is not model:
            raise ValueError(
                "this callback is attached to another model; give every model its own callback"
            )
        return self.session

    @property
    def running(self) -> Session:
        """The session, where training cannot be without one."""
        if self.session is None:
            raise ValueError(
                "no recipe is bound to the model; give the callback to the trainer when that is made"
            )
        return self.session

    def begin(self, steps: int, stored: dict[str, Any] | None) -> Session:
        """Training of so many steps of the optimizer begins, or goes on from what a
        checkpoint `stored`.
        """
        session = self.running
        session.epochs, session.steps_per_epoch = training_length(
            self.recipe, None, None, steps
        )
        if stored is not None:
            session.load_state_dict(stored)
        elif done := session.state_dict()["steps_done"]:
            raise ValueError(
                f"the model has {done} steps of an interrupted training behind it; resume that from a checkpoint, "
                "or start again with a fresh model and callback"
            )
        return session

    def finish(self, *, writes: bool) -> CompressedModel:
        """Pack and, on the rank that `writes`, save; the model is a plain one again,
        with its final weights.
        """
        session = self.running
        self.packed = session.pack(calibration=self._calibration)
        session.bake_()
        self.session, self._is_over = None, True
        if writes and self.out is not None:
            codec.save(self.packed, self.out)
        return self.packed


def refuse_searches(recipe: Recipe) -> None:
    if recipe.needs_batches:
        raise ValueError(
            "the recipe searches, and looks at every batch, which this library does not hand over; "
            "write the loop yourself, with session.step(inputs, targets)"
        )


def refuse_cut_weights(kind: object) -> None:
    """`kind` is Accelerate's word for how the ranks share the work, whether a script or
    a launcher chose it.
    """
    name = getattr(kind, "name", "")
    if name in _CUT_UP:
        raise ValueError(
            f"{name} cuts weights up, and a recipe needs them whole; train with DDP instead"
        )


def refuse_scaled_penalty(session: Session, precision: str) -> None:
    """The scaler divides all gradients by its factor, and those of the methods' own
    term were never multiplied.
    """
    if session.penalty().requires_grad:
        raise ValueError(
            f"{precision} scales the loss, and the recipe has a term of its own in it; use bf16"
        )


def remove_hooks(hooks: list[Any]) -> None:
    """Take hooks off."""
    for hook in hooks:
        hook.remove()
    hooks.clear()


def learned_by(session: Session) -> list[nn.Parameter]:
    """What the methods learn beside the weights."""
    _, *others = session.param_groups()
    return [parameter for group in others for parameter in group["params"]]


def check_optimizer(optimizer: Optimizer, session: Session) -> None:
    """An optimizer from before the recipe came does not know what the methods learn."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    weights = [site.latent for site in session.sites if site.latent.requires_grad]
    lacking = [p for p in [*weights, *learned_by(session)] if id(p) not in held]
    if lacking:
        raise ValueError(
            f"the optimizer does not have {len(lacking)} of the parameters that the recipe trains; make it of "
            "model.parameters() after the recipe is bound, or let the trainer make it"
        )


def spare_learned_(optimizer: Optimizer, session: Session) -> list[Any]:
    """Levels, scores and thresholds do not decay, whatever groups the optimizer was
    made with.

    They stand in groups of their own during a step alone, so that its schedulers and
    checkpoints see what they know. Returns the hooks; `remove()` takes each off.
    """
    learned = set(map(id, learned_by(session)))
    if not learned or not any(
        group.get("weight_decay") for group in optimizer.param_groups
    ):
        return []
    kept: list[list[Any]] = []

    def split(*_: Any) -> None:
        kept[:] = [group["params"] for group in optimizer.param_groups]
        for group in list(optimizer.param_groups):
            spared = [p for p in group["params"] if id(p) in learned]
            if spared and group.get("weight_decay"):
                group["params"] = [p for p in group["params"] if id(p) not in learned]
                optimizer.param_groups.append(
                    {**group, "params": spared, "weight_decay": 0.0}
                )

    def join(*_: Any) -> None:
        del optimizer.param_groups[len(kept) :]
        for group, params in zip(optimizer.param_groups, kept, strict=True):
            group["params"] = params

    return [
        optimizer.register_step_pre_hook(split),
        optimizer.register_step_post_hook(join),
    ]


def add_penalty_(session: Session) -> None:
    """The methods' own term adds its gradient to that of the loss; once for every step
    of the optimizer.
    """
    term = session.penalty()
    if term.requires_grad:
        term.backward()
