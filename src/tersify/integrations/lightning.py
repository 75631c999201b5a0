"""Lightning: `Trainer(callbacks=[TersifyCallback("ternary-target", out="net.terse")])`."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from tersify.calibration import Calibration
from tersify.integrations.compression import (
    Compression,
    add_penalty_,
    check_optimizer,
    refuse_scaled_penalty,
    remove_hooks,
    spare_learned_,
)
from tersify.recipe import Recipe
from tersify.session import Session
from tersify.tensor import CompressedModel
from tersify.units import Example

# One library under two names, which do not know each other's classes.
_OLD, _NEW = "pytorch_lightning", "lightning.pytorch"
_HOME = _OLD if _OLD in sys.modules and _NEW not in sys.modules else _NEW
try:
    Callback: Any = importlib.import_module(_HOME).Callback
except ImportError:
    Callback = importlib.import_module(_OLD).Callback

_WHOLE_WEIGHTS = ("SingleDeviceStrategy", "DDPStrategy")
_CUT_WEIGHTS = ("DeepSpeedStrategy",)  # which is a kind of DDPStrategy there
_AVERAGES = ("WeightAveraging", "StochasticWeightAveraging")


class TersifyCallback(Callback):
    """Train under a recipe: bound when `fit` begins, moved on before each step, packed
    when `fit` ends.

    The length is the Trainer's own, `max_steps` or `max_epochs`. In a checkpoint the
    module's weights are plain, as the compressed network uses them, so that
    `load_from_checkpoint` and `test(ckpt_path=…)` find what they look for; what
    `fit(ckpt_path=…)` needs to go on is the callback's own part. When `fit` ends,
    `packed` is what was made, in the file `out` too, and the module is a plain one with
    the compressed weights. `settings`, `calibration` and `example` are those of
    `tersify.attach`; batch norms get their statistics anew from `calibration`.
    """

    def __init__(
        self,
        recipe: str | Path | Recipe,
        *,
        out: str | Path | None = None,
        calibration: Calibration | Iterable[tuple[Any, Any]] | None = None,
        example: Example | None = None,
        **settings: Any,
    ) -> None:
        self._compression = Compression(
            recipe,
            settings,
            out=out,
            calibration=calibration,
            example=example,
            gives_batches=True,
        )
        self._hooks: list[Any] = []
        self._sparing: list[Any] = []
        self._stored: dict[str, Any] | None = None
        self._is_due = True
        self._lacks_latents = False

    @property
    def session(self) -> Session | None:
        """The session at work; None before and after."""
        return self._compression.session

    @property
    def packed(self) -> CompressedModel | None:
        """What training made, once it is over."""
        return self._compression.packed

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Before Lightning makes the optimizer and reads a checkpoint."""
        if stage != "fit":
            return
        if not _is_kind(trainer.strategy, _WHOLE_WEIGHTS) or _is_kind(
            trainer.strategy, _CUT_WEIGHTS
        ):
            raise ValueError(
                f"{type(trainer.strategy).__name__} cuts weights up, and a recipe needs them whole; "
                "train on one device, or with strategy='ddp'"
            )
        for callback in trainer.callbacks:
            if _is_kind(callback, _AVERAGES):
                raise ValueError(
                    f"{type(callback).__name__} averages masks and thresholds as if they were weights; leave it out"
                )
        if not self._hooks:  # an interrupted fit has left them
            # Before those of the session, which refuse plain weights.
            self._hooks = [
                pl_module.register_load_state_dict_pre_hook(self._accept_plain)
            ]
        session = self._compression.attach(pl_module)
        if trainer.precision == "16-mixed":
            refuse_scaled_penalty(session, "16-mixed")

    def _accept_plain(
        self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any
    ) -> None:
        """Our checkpoints have plain weights here; the latents, which come with the
        callback's part, stay till then.
        """
        if self.session is None:
            return
        own = {
            prefix + name: value for name, value in _beside_plain(self.session).items()
        }
        self._lacks_latents = bool(own) and not own.keys() & state.keys()
        if self._lacks_latents:
            state.update(own)

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        if self._lacks_latents:
            raise ValueError(
                "the checkpoint was written without TersifyCallback; load its weights before fit instead"
            )

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        steps = trainer.estimated_stepping_batches
        if not math.isfinite(steps) or steps < 1:
            raise ValueError(
                "how long training takes is not known; give the Trainer max_steps, or max_epochs"
            )
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"a recipe moves on with one optimizer, the module has {len(trainer.optimizers)}; use one"
            )
        stored, self._stored = self._stored, None
        session = self._compression.begin(int(steps), stored)
        (optimizer,) = trainer.optimizers
        check_optimizer(optimizer, session)
        remove_hooks(self._sparing)
        self._sparing = spare_learned_(optimizer, session)

    def on_train_batch_start(
        self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        """Batches whose gradients add up are one step."""
        if self._is_due:
            pair = isinstance(batch, (tuple, list)) and len(batch) == 2
            self._compression.running.step(*(batch if pair else ()))
            self._is_due = False

    def on_before_optimizer_step(
        self, trainer: Any, pl_module: nn.Module, optimizer: Optimizer
    ) -> None:
        add_penalty_(self._compression.running)
        self._is_due = True

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        self._compression.finish(writes=trainer.is_global_zero)
        remove_hooks(self._hooks)
        remove_hooks(self._sparing)

    def on_save_checkpoint(
        self, trainer: Any, pl_module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        if self.session is not None:
            for name in _beside_plain(self.session):
                del checkpoint["state_dict"][name]

    def state_dict(self) -> dict[str, Any]:
        if self.session is None:
            return {}
        return {
            "session": self.session.state_dict(),
            "latents": _beside_plain(self.session),
            "is_due": self._is_due,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.session is None or not state_dict:
            return  # not for training
        self.session.model.load_state_dict(state_dict["latents"], strict=False)
        self._stored, self._is_due, self._lacks_latents = (
            state_dict["session"],
            state_dict["is_due"],
            False,
        )


def _beside_plain(session: Session) -> dict[str, Tensor]:
    """What the session added to the module's state."""
    plain = set(session.names)
    return {
        name: tensor
        for name, tensor in session.model.state_dict().items()
        if name not in plain
    }


def _is_kind(thing: object, names: tuple[str, ...]) -> bool:
    return any(kind.__name__ in names for kind in type(thing).__mro__)
