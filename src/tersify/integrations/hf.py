"""The Hugging Face Trainer: `Trainer(…, callbacks=[TersifyCallback("ternary-target",
out="net.terse")])`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from tersify.calibration import Calibration
from tersify.integrations.compression import (
    Compression,
    add_penalty_,
    check_optimizer,
    refuse_cut_weights,
    refuse_scaled_penalty,
    remove_hooks,
    spare_learned_,
)
from tersify.recipe import Recipe
from tersify.session import Session
from tersify.tensor import CompressedModel
from tersify.tensor.attached_names import STATE
from tersify.units import Example


class TersifyCallback(TrainerCallback):
    """Train under a recipe: bound when the Trainer is made, moved on before each step,
    packed when training ends.

    The length is the Trainer's own, `max_steps` or `num_train_epochs`. Its checkpoints
    hold all that `resume_from_checkpoint` needs. When training ends, `packed` is what
    was made, in the file `out` too, and the model is a plain one with the compressed
    weights. `settings`, `calibration` and `example` are those of `tersify.attach`;
    batch norms get their statistics anew from `calibration`.
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
            gives_batches=False,
        )
        self._hooks: list[Any] = []
        self._sparing: list[Any] = []
        self._stored: dict[str, Any] | None = None

    @property
    def session(self) -> Session | None:
        """The session at work; None before and after."""
        return self._compression.session

    @property
    def packed(self) -> CompressedModel | None:
        """What training made, once it is over."""
        return self._compression.packed

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Before the Trainer makes its optimizer and reads a checkpoint."""
        model = kwargs["model"]
        for setting in ("deepspeed", "fsdp"):
            if getattr(args, setting, None):
                raise ValueError(
                    f"{setting} cuts weights up, and a recipe needs them whole; train with DDP instead"
                )
        # a launcher's choice, of which `args` may not know
        refuse_cut_weights(AcceleratorState().distributed_type)
        if args.auto_find_batch_size:
            raise ValueError(
                "auto_find_batch_size restarts training several times; give a batch size that fits"
            )
        session = self._compression.attach(model)
        if args.fp16:
            refuse_scaled_penalty(session, "fp16")
        self._hooks = self._travel_with(model)

    def _travel_with(self, model: nn.Module) -> list[Any]:
        """Where the session stands goes into the model's checkpoints, the one file that
        the Trainer reads again.
        """

        def write(
            module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any
        ) -> None:
            if self.session is not None and module is self.session.model:
                state[prefix + STATE] = _to_tensor(self.session.state_dict())

        def read(
            module: nn.Module, state: dict[str, Any], prefix: str, *_: Any
        ) -> None:
            if prefix + STATE in state:
                self._stored = _from_tensor(state.pop(prefix + STATE))

        return [
            model.register_state_dict_post_hook(write),
            model.register_load_state_dict_pre_hook(read),
        ]

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        resumed = state.global_step > 0
        if resumed and self._stored is None:
            raise ValueError(
                "the checkpoint was written without TersifyCallback; start again from its weights"
            )
        session = self._compression.begin(
            state.max_steps, self._stored if resumed else None
        )
        # Accelerate's wrapper passes its steps on to torch's optimizer.
        inner = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        check_optimizer(inner, session)
        remove_hooks(self._sparing)  # of a training that was interrupted
        self._sparing = spare_learned_(inner, session)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        self._compression.running.step()

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        add_penalty_(self._compression.running)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """The methods' figures go with the Trainer's own."""
        if self.session is not None:
            kwargs["logs"].update(self.session.figures())

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        self._compression.finish(writes=state.is_world_process_zero)
        remove_hooks(self._hooks)
        remove_hooks(self._sparing)


def _to_tensor(state: dict[str, Any]) -> Tensor:
    """Bytes, which every kind of checkpoint can hold."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.from_numpy(np.frombuffer(file.getvalue(), np.uint8).copy())


def _from_tensor(stored: Tensor) -> dict[str, Any]:
    state = torch.load(io.BytesIO(stored.cpu().numpy().tobytes()), weights_only=True)
    assert isinstance(state, dict)
    return state
