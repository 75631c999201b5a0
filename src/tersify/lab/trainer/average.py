"""An exponential moving average of the weights (the latents, where a weight is
compressed).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


class WeightAverage:
    """Averages the parameters and the batch-norm statistics; thresholds and masks
    follow the model.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        names = {name for name, _ in model.named_parameters()}
        self._live = {
            name: tensor
            for name, tensor in model.state_dict(keep_vars=True).items()
            if name in names or name.endswith(("running_mean", "running_var"))
        }
        self._mean = {
            name: tensor.detach().clone() for name, tensor in self._live.items()
        }

    @torch.no_grad()
    def update_(self) -> None:
        # mean ← decay · mean + (1 − decay) · live, for all tensors in one call.
        torch._foreach_lerp_(
            list(self._mean.values()),
            [t.detach() for t in self._live.values()],
            1.0 - self._decay,
        )

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The model holds the average inside, and its own weights again afterwards."""
        self._swap_()
        try:
            yield
        finally:
            self._swap_()

    @torch.no_grad()
    def _swap_(self) -> None:
        for name, tensor in self._live.items():
            # Swapped by value: optimizer and compiled graphs hold on to the tensors
            # themselves.
            kept = tensor.detach().clone()
            tensor.copy_(self._mean[name])
            self._mean[name].copy_(kept)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._mean)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self._mean.items():
            tensor.copy_(state[name])
