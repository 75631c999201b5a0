"""Gates: the mask of one layer's units, shared by the rows of its weight, its bias and
its BatchNorm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tersify.methods.base import Transform, Units
from tersify.methods.prepared_slots import forget_prepared
from tersify.methods.weight_math import pack_kept
from tersify.tensor import CompressedTensor


class Gate(nn.Module):
    """Which units of a layer are active; `open` lets all through, while candidates are
    masked elsewhere.
    """

    mask: Tensor

    def __init__(self, units: int, like: Tensor) -> None:
        super().__init__()
        self.open = False
        # A float: multiplying by it is one kernel forward and one backward.
        self.register_buffer("mask", like.new_ones(units))


def spread_index(unit: Tensor, count: int, like: Tensor) -> Tensor | None:
    """Where to read each index's mask; None where unit i is index i, as it mostly is."""
    return (
        None if torch.equal(unit.cpu(), torch.arange(count)) else unit.to(like.device)
    )


def spread(mask: Tensor, unit: Tensor | None) -> Tensor:
    """(…, units) → (…, indices), 1 where an index belongs to no unit: -1 reads the one
    that is put behind the last.
    """
    return (
        mask
        if unit is None
        else torch.cat([mask, torch.ones_like(mask[..., :1])], -1)[..., unit]
    )


class GateTransform(Transform):
    """What belongs to inactive units is zero; `unit` holds for each index along `dim`
    its unit, or -1.

    `covered` says that something behind this weight (the BatchNorm's γ and β) silences
    the units as well: in training its own mask then changes nothing, gradients
    included, and is left out to save time.
    """

    unit: Tensor | None

    def __init__(self, gate: Gate, units: Units) -> None:
        super().__init__()
        self.gate = gate
        self.dim = units.dim
        self.covered = False
        self.register_buffer(
            "unit", spread_index(units.unit, units.count, gate.mask), persistent=False
        )

    def keep(self, dims: int) -> Tensor:
        """The mask, shaped to broadcast over a weight of that many dimensions."""
        mask = spread(self.gate.mask, self.unit)
        if dims == 1:
            return mask
        shape = [1] * dims
        shape[self.dim] = -1
        return mask.view(shape)

    @property
    def passes_in_training(self) -> bool:
        return self.covered

    def forward(self, latent: Tensor) -> Tensor:
        if self.gate.open or (self.covered and self.training):
            return latent
        return latent * self.keep(latent.ndim)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        return pack_kept(
            upstream, self.keep(len(upstream.shape)).bool().expand(upstream.shape)
        )


@contextlib.contextmanager
def full_network(model: nn.Module) -> Iterator[int]:
    """Inside, every unit of a model in training is active: (F) of the paper, where (P)
    is the pruned network.

    Gives the number of layers that have gates.
    """
    gates = [module for module in model.modules() if isinstance(module, Gate)]
    # Prepared weights were masked with closed gates.
    forget_prepared(model)
    try:
        for gate in gates:
            gate.open = True
        yield len(gates)
    finally:
        for gate in gates:
            gate.open = False


class Whole(Transform):
    """A weight without units: it stays as it is."""

    @property
    def passes_in_training(self) -> bool:
        return True

    def forward(self, latent: Tensor) -> Tensor:
        return latent

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        if isinstance(upstream, CompressedTensor):
            return upstream
        return pack_kept(upstream, torch.ones_like(upstream, dtype=torch.bool))
