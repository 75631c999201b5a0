"""Magnitude pruning with a mask that follows a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tersify.methods.base import Bound, Method, Site, Step, Transform, check_range, dense, register
from tersify.schedules import cubic_ramp
from tersify.tensor import CompressedTensor


@register("magnitude")
@dataclass(frozen=True, kw_only=True)
class Magnitude(Method):
    """The smallest weights of each tensor become zero; the share of zeros rises to `sparsity`.

    It rises by Zhu and Gupta's cubic between the shares `begin` and `end` of training. The mask is chosen
    anew in every step until `end`: a pruned weight keeps its latent and returns when others shrink below it.
    """

    quantizes: ClassVar[bool] = False
    sparsity: float = 0.9
    begin: float = 0.0
    end: float = 0.75

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity must be in [0, 1), got {self.sparsity!r}")
        check_range("begin", self.begin, low=0.0, high=1.0)
        check_range("end", self.end, low=0.0, high=1.0)
        if self.end <= self.begin:
            raise ValueError(f"end must lie behind begin ({self.begin}), got {self.end}")

    def transform(self, site: Site) -> Transform:
        return MaskTransform(site.entering())

    def update(self, bound: Bound, step: Step) -> None:
        progress = step.progress
        sparsity = cubic_ramp(0.0, self.sparsity, self.begin, self.end)(progress)
        if progress.step + 1 >= progress.steps:
            sparsity = self.sparsity
        # Once behind the ramp, in its first step, so that a ramp shorter than a step is not missed.
        behind = progress.share - self.end
        if behind < 1 / progress.steps or progress.step + 1 >= progress.steps:
            for site, transform in zip(bound.sites, bound.each(MaskTransform), strict=True):
                transform.choose_(site.entering(transform), sparsity)


class MaskTransform(Transform):
    mask: Tensor

    def __init__(self, latent: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones_like(latent, dtype=torch.bool))

    def choose_(self, latent: Tensor, sparsity: float) -> None:
        pruned = round(sparsity * latent.numel())
        self.mask.fill_(True)
        if pruned:
            smallest = latent.abs().flatten().topk(pruned, largest=False).indices
            self.mask.view(-1)[smallest] = False

    def forward(self, latent: Tensor) -> Tensor:
        return torch.where(self.mask, latent, 0.0)

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        weight, keep = dense(upstream), self.mask
        if isinstance(upstream, CompressedTensor):
            keep = keep & upstream.codes.bool()
        return CompressedTensor(shape=tuple(weight.shape), codes=keep.to(torch.uint8), values=weight[keep])
