"""Gates: the mask of one layer's units, shared by the rows of its weight, its bias and its BatchNorm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tersify.methods.base import Transform, dense
from tersify.tensor import CompressedTensor


class Gate(nn.Module):
    """Which units of a layer are active; `open` lets all through, while candidates are masked elsewhere."""

    mask: Tensor

    def __init__(self, units: int, like: Tensor) -> None:
        super().__init__()
        self.open = False
        # A float: multiplying by it is one kernel forward and one backward.
        self.register_buffer("mask", like.new_ones(units))


class GateTransform(Transform):
    """Rows (or entries) of inactive units are zero.

    `covered` says that something behind this weight (the BatchNorm's γ and β) silences the units as well:
    in training its own mask then changes nothing, gradients included, and is left out to save time.
    """

    def __init__(self, gate: Gate, rows: int) -> None:
        super().__init__()
        self.gate = gate
        self.rows = rows
        self.covered = False

    def _keep(self, weight: Tensor) -> Tensor:
        mask = self.gate.mask if self.rows == 1 else self.gate.mask.repeat_interleave(self.rows)
        return mask.view(-1, *[1] * (weight.ndim - 1))

    def forward(self, latent: Tensor) -> Tensor:
        if self.gate.open or (self.covered and self.training):
            return latent
        return latent * self._keep(latent)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        weight = dense(upstream)
        keep = self._keep(weight).bool().expand_as(weight)
        if isinstance(upstream, CompressedTensor):
            keep = keep & upstream.codes.bool()
        return CompressedTensor(shape=tuple(weight.shape), codes=keep.to(torch.uint8), values=weight[keep])


@contextlib.contextmanager
def full_network(model: nn.Module) -> Iterator[int]:
    """Inside, every unit of a model in training is active: (F) of the paper, where (P) is the pruned network.

    Gives the number of layers that have gates.
    """
    gates = [module for module in model.modules() if isinstance(module, Gate)]
    try:
        for gate in gates:
            gate.open = True
        yield len(gates)
    finally:
        for gate in gates:
            gate.open = False


class Whole(Transform):
    """A weight without units: it stays as it is."""

    def forward(self, latent: Tensor) -> Tensor:
        return latent

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        if isinstance(upstream, CompressedTensor):
            return upstream
        ones = torch.ones_like(upstream, dtype=torch.uint8)
        return CompressedTensor(shape=tuple(upstream.shape), codes=ones, values=upstream.detach().flatten())
