"""Layers that compute fewer channels than they give: the others are zeros, put back
where additions expect them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Scattering(nn.Module):
    """`source` names for every channel of the output the computed channel it is, or
    their number for a zero.
    """

    source: Tensor
    channel_dim = 1

    def forward(self, x: Tensor) -> Tensor:
        computed = super().forward(x)
        dim = self.channel_dim % computed.dim()
        # One channel of zeros behind the computed ones; `source` points there for every
        # channel that is not computed. F.pad counts from the last dimension.
        one_more = [0, 0] * (computed.dim() - 1 - dim) + [0, 1]
        return F.pad(computed, one_more).index_select(dim, self.source)


class ScatteringConv1d(Scattering, nn.Conv1d):
    pass


class ScatteringConv2d(Scattering, nn.Conv2d):
    pass


class ScatteringConv3d(Scattering, nn.Conv3d):
    pass


class ScatteringBatchNorm1d(Scattering, nn.BatchNorm1d):
    pass


class ScatteringBatchNorm2d(Scattering, nn.BatchNorm2d):
    pass


class ScatteringBatchNorm3d(Scattering, nn.BatchNorm3d):
    pass


class ScatteringLinear(Scattering, nn.Linear):
    channel_dim = -1


_FORMS: dict[type[nn.Module], type[Scattering]] = {
    form.__mro__[2]: form
    for form in (
        ScatteringConv1d,
        ScatteringConv2d,
        ScatteringConv3d,
        ScatteringBatchNorm1d,
        ScatteringBatchNorm2d,
        ScatteringBatchNorm3d,
        ScatteringLinear,
    )
}


def can_scatter(module: nn.Module) -> bool:
    return type(module) in _FORMS


def scatter_(module: nn.Module, source: Tensor) -> None:
    """The module, already cut, gives zeros in the other channels from now on. Its
    parameters keep their names.
    """
    module.__class__ = _FORMS[type(module)]
    assert isinstance(module, Scattering)
    weight = module.weight
    module.register_buffer(
        "source",
        source.to(weight.device if isinstance(weight, Tensor) else "cpu", torch.int64),
    )
