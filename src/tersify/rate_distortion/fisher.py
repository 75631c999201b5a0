"""What a little data says about each layer: how much the loss feels a change of its
weights.
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

LEAST_SHARE = 1e-2  # of the mean over a layer: no output matters less
ELEMENTS_AT_ONCE = 1 << 24  # of what meets the weights, and of gradients


@dataclass(frozen=True, eq=False)
class Fisher:
    """The second moment of the weight's gradients of single samples, as the product of
    a factor for its rows and one for its columns (K-FAC's form).

    A sample's gradient is summed over the places that a filter visits before it is
    squared: a change of a weight acts at all places at once.
    """

    columns: Tensor  # (groups, columns, columns), each of trace one
    rows: Tensor  # (rows,)

    def diagonal(self, shape: tuple[int, ...]) -> Tensor:
        """The expected squared gradient of each weight."""
        columns = self.columns.diagonal(dim1=1, dim2=2)
        rows = self.rows.view(len(columns), -1)
        return (rows[:, :, None] * columns[:, None]).reshape(shape)


def fisher_of(
    model: nn.Module, sites: Sequence[Site], calibration: Calibration
) -> dict[str, Fisher]:
    """By name of a weight, for the linear layers and convolutions that the batches
    reach; one pass forward and back a batch, with the network in eval mode.

    The loss is a mean over the samples of a batch.
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
        self._groups = getattr(module, "groups", 1)
        self._samples = 0
        self._columns: Tensor | None = None
        self._rows: Tensor | None = None

    def look(self, module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        if out.requires_grad:
            out.register_hook(self._backward(args[0].detach()))

    def _backward(self, inputs: Tensor) -> Callable[[Tensor], None]:
        def add(gradient: Tensor) -> None:
            samples = len(gradient)
            # of a mean over the batch, so each sample's own is as many times larger
            every = gradient.detach().float() * samples
            places = gradient[0].numel() // len(self.module.weight)
            columns = self.module.weight[0].numel()
            largest = max(places * columns * self._groups, self.module.weight.numel())
            at_once = max(1, ELEMENTS_AT_ONCE // largest)
            for x, g in zip(inputs.split(at_once), every.split(at_once), strict=True):
                self._add(self._met(x.float()), self._felt(g))
            self._samples += samples

        return add

    def _met(self, x: Tensor) -> Tensor:
        """(groups, samples, places, columns): what meets the weights of a filter."""
        if isinstance(self.module, nn.Linear):
            return x.reshape(1, len(x), -1, x.shape[-1])
        x, window = _as_image(x, self.module)
        columns = F.unfold(x, **window).unflatten(1, (self._groups, -1))
        return columns.permute(1, 0, 3, 2)

    def _felt(self, gradient: Tensor) -> Tensor:
        """(groups, samples, rows, places): the gradients of the outputs."""
        if isinstance(self.module, nn.Linear):
            return gradient.reshape(1, len(gradient), -1, gradient.shape[-1]).mT
        return gradient.flatten(2).unflatten(1, (self._groups, -1)).transpose(0, 1)

    def _add(self, met: Tensor, felt: Tensor) -> None:
        if felt.shape[3] < felt.shape[2]:
            # Fewer places than rows: their products take less than the gradients.
            rows = ((felt @ (met @ met.mT)) * felt).sum((1, 3))
            half = ((felt.mT @ felt) @ met).flatten(1, 2)
            columns = met.flatten(1, 2).mT @ half
        else:
            gradients = felt @ met
            rows = gradients.square().sum((1, 3))
            flat = gradients.flatten(1, 2)
            columns = flat.mT @ flat
        self._rows = rows if self._rows is None else self._rows + rows
        self._columns = columns if self._columns is None else self._columns + columns

    def found(self) -> Fisher | None:
        if self._rows is None or self._columns is None:
            return None
        rows = self._rows.flatten() / self._samples
        least = max(LEAST_SHARE * float(rows.mean()), 1e-30)
        trace = self._columns.diagonal(dim1=1, dim2=2).sum(1).clamp(min=1e-30)
        return Fisher(self._columns / trace[:, None, None], rows.clamp(min=least))


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
