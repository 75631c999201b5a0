"""What a little data says about each layer: how its inputs go together, and how much
each of its outputs matters to the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.calibration import Calibration
from tersify.methods import Site
from tersify.modes import eval_mode

# of the places of one input that its covariance is taken at; neighbours tell the same
MOST_PLACES = 64
LEAST_SHARE = 1e-2  # of the mean over a layer: no output matters less


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """`together` is the mean of x·xᵀ over the inputs x that a filter meets, one matrix
    a group; `matters` the squared gradient of the loss for each output, summed over
    the places of a sample.
    """

    together: Tensor  # (groups, columns, columns)
    matters: Tensor  # (rows,)

    def sensitivity(self, shape: tuple[int, ...]) -> Tensor:
        """The expected squared gradient of each weight, as if inputs and gradients
        were independent (K-FAC).
        """
        columns = self.together.diagonal(dim1=1, dim2=2)
        rows = self.matters.view(len(columns), -1)
        return (rows[:, :, None] * columns[:, None]).reshape(shape)


def layer_inputs(
    model: nn.Module, sites: Sequence[Site], calibration: Calibration
) -> dict[str, LayerInputs]:
    """By name of a weight, for the linear layers and convolutions that the batches
    reach; one pass forward and back a batch, with the network in eval mode.
    """
    taps = {site.name: tap for site in sites if (tap := _tap_of(site)) is not None}
    if not taps:
        return {}
    with _watched(taps), eval_mode(model), torch.enable_grad():
        for inputs, targets in calibration.pairs():
            loss = calibration.loss(model(inputs), targets)
            if loss.requires_grad:
                torch.autograd.grad(
                    loss,
                    [tap.module.weight for tap in taps.values()],
                    allow_unused=True,
                )
    return {
        name: found for name, tap in taps.items() if (found := tap.found()) is not None
    }


def _tap_of(site: Site) -> _Tap | None:
    """None where a weight has several layers, or one whose inputs do not meet it one by
    one.
    """
    (module, attribute), *others = site.owners
    is_plain = isinstance(module, nn.Linear) or (
        isinstance(module, (nn.Conv1d, nn.Conv2d))
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )
    if others or attribute != "weight" or not is_plain:
        return None
    return _Tap(module)


@contextlib.contextmanager
def _watched(taps: dict[str, _Tap]) -> Iterator[None]:
    hooks = [tap.module.register_forward_hook(tap.look) for tap in taps.values()]
    frozen = [
        t.module.weight for t in taps.values() if not t.module.weight.requires_grad
    ]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
        for hook in hooks:
            hook.remove()


class _Tap:
    """Sums over the samples that pass one layer."""

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module
        self._sum: Tensor | None = None
        self._places = self._samples = 0
        self._squares: Tensor | None = None

    def look(self, module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        with torch.no_grad():
            met = self._met(args[0].detach().float())
            gram = met.transpose(1, 2) @ met
            self._sum = gram if self._sum is None else self._sum + gram
            self._places += met.shape[1]
        if out.requires_grad:
            out.register_hook(self._backward())

    def _backward(self) -> Callable[[Tensor], None]:
        def add(gradient: Tensor) -> None:
            axis = -1 if isinstance(self.module, nn.Linear) else 1
            rows = gradient.detach().float().movedim(axis, 0).flatten(1)
            squares = rows.square().sum(1)
            self._squares = (
                squares if self._squares is None else self._squares + squares
            )
            self._samples += len(gradient)

        return add

    def _met(self, x: Tensor) -> Tensor:
        """(groups, places, columns): what meets the weights of a filter, some places of
        each sample.
        """
        if isinstance(self.module, nn.Linear):
            return x.reshape(1, -1, x.shape[-1])
        x, window = _as_image(x, self.module)
        groups = self.module.groups
        columns = F.unfold(x, **window)
        places = columns.shape[2]
        # an odd step: an even one would meet the same columns of the image in each row
        columns = columns[:, :, :: (places // MOST_PLACES) | 1]
        apart = columns.unflatten(1, (groups, -1))
        return apart.permute(1, 0, 3, 2).flatten(1, 2)

    def found(self) -> LayerInputs | None:
        if self._sum is None or self._squares is None:
            return None
        matters = self._squares / self._samples
        least = max(LEAST_SHARE * float(matters.mean()), 1e-30)
        return LayerInputs(self._sum / self._places, matters.clamp(min=least))


def _as_image(x: Tensor, module: Any) -> tuple[Tensor, dict[str, Any]]:
    """A convolution over one axis is one over images of a single row."""
    settings = {
        "kernel_size": module.kernel_size,
        "dilation": module.dilation,
        "padding": module.padding,
        "stride": module.stride,
    }
    if isinstance(module, nn.Conv2d):
        return x, settings
    one_row = {"kernel_size": 1, "dilation": 1, "padding": 0, "stride": 1}
    return x[:, :, None], {k: (one_row[k], *v) for k, v in settings.items()}
