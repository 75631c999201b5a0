"""What a weight is worth to a pruner: one small class a score, found by its name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from tersify.methods.base import Site
from tersify.methods.pruning.mask import (
    FactorMask,
    GatheredMask,
    LearnedMask,
    MaskTransform,
    SoftMask,
)


class Score:
    """Larger is worth more. What it must remember lives in the mask's transform that it
    makes.
    """

    # what calibration batches must tell before anything can be scored
    needs: ClassVar[str] = ""

    def transform(self, site: Site) -> MaskTransform:
        return MaskTransform(site.entering())

    def of(self, weight: Tensor, mask: MaskTransform, site: Site) -> Tensor:
        raise NotImplementedError

    def of_all(self, members: Sequence[tuple[Site, MaskTransform]]) -> Sequence[Tensor]:
        """The scores of several tensors' weights."""
        return [self.of(_entering(site, mask), mask, site) for site, mask in members]

    def has_seen_data(self, mask: MaskTransform) -> bool:
        """Whether the score says anything yet."""
        return True


class Magnitude(Score):
    """|w|; over a structure its mean, so filters go by their L1 norm."""

    def of(self, weight: Tensor, mask: MaskTransform, site: Site) -> Tensor:
        return weight.abs()

    def of_all(self, members: Sequence[tuple[Site, MaskTransform]]) -> Sequence[Tensor]:
        return torch._foreach_abs([_entering(site, mask) for site, mask in members])


class Random(Score):
    """A number drawn for each weight from the seed and the weight's name: the control
    every score must beat.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of(self, weight: Tensor, mask: MaskTransform, site: Site) -> Tensor:
        # From the name and not from the order of sites: another rule that adds a layer
        # must not change this one's numbers. Drawn on the CPU, so equal on every
        # device.
        digest = hashlib.sha256(f"{self._seed}/{site.name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
        return torch.rand(weight.shape, generator=generator).to(weight.device)


class Movement(Score):
    """How far weights move away from zero as training goes: learned scores (Sanh et al.
    2020).

    Published, they begin at zero; with a head start of 1 each begins at its weight's
    magnitude and only grows or shrinks from there, which a short training needs: most
    weights barely move, and noise would order them. A row's or column's score sees all
    of its weights, so little data tells more about it than about each of them.
    """

    def __init__(
        self, gain: float, head_start: float = 0.0, lines: float = 0.0
    ) -> None:
        self._gain, self._head_start, self._lines = gain, head_start, lines

    def transform(self, site: Site) -> MaskTransform:
        return LearnedMask(
            site.entering(),
            gain=self._gain,
            head_start=self._head_start,
            lines=self._lines,
        )

    def of(self, weight: Tensor, mask: MaskTransform, site: Site) -> Tensor:
        assert isinstance(mask, LearnedMask)
        return mask.worth().detach()

    def has_seen_data(self, mask: MaskTransform) -> bool:
        assert isinstance(mask, LearnedMask)
        return bool(mask.score.any())


class SoftMovement(Movement):
    """Movement with a threshold instead of a fraction: a penalty pushes scores down until
    σ(score) is below it.
    """

    def transform(self, site: Site) -> MaskTransform:
        return SoftMask(site.entering(), gain=self._gain)

    def of(self, weight: Tensor, mask: MaskTransform, site: Site) -> Tensor:
        return torch.sigmoid(super().of(weight, mask, site))


class Taylor(Score):
    """|gradient · weight|: what the loss would lose, to first order. At the start of
    training this is SNIP.
    """

    def transform(self, site: Site) -> MaskTransform:
        weight = site.entering()
        start = (
            # Sensitivity is the mean squared gradient; its root stands for |gradient|.
            None if site.sensitivity is None else site.sensitivity.sqrt() * weight.abs()
        )
        return GatheredMask(weight, start)

    def of(self, weight: Tensor, mask: MaskTransform, site: Site) -> Tensor:
        assert isinstance(mask, GatheredMask)
        return mask.score

    def has_seen_data(self, mask: MaskTransform) -> bool:
        assert isinstance(mask, GatheredMask)
        return bool(mask.score.any())


class BrainDamage(Score):
    """½·h·w², what the loss would lose to second order, with the Fisher diagonal for h
    (LeCun et al. 1990).
    """

    needs = "gradients"

    def transform(self, site: Site) -> MaskTransform:
        assert site.sensitivity is not None
        return FactorMask(site.entering(), site.sensitivity)

    def of(self, weight: Tensor, mask: MaskTransform, site: Site) -> Tensor:
        assert isinstance(mask, FactorMask)
        return 0.5 * mask.factor * weight.square()


class Wanda(Score):
    """|w| times the norm of the input it meets, from calibration batches (Sun et al.
    2023).
    """

    needs = "inputs"

    def transform(self, site: Site) -> MaskTransform:
        assert site.input_norm is not None
        return FactorMask(site.entering(), site.input_norm)

    def of(self, weight: Tensor, mask: MaskTransform, site: Site) -> Tensor:
        assert isinstance(mask, FactorMask)
        return weight.abs() * mask.factor


def _entering(site: Site, mask: MaskTransform) -> Tensor:
    # Mostly the mask comes first, and the latent itself is what it masks.
    return site.latent if site.chain[0] is mask else site.entering(mask)


SCORES = ("magnitude", "movement", "soft-movement", "taylor", "obd", "random", "wanda")


def score_named(
    name: str, *, seed: int, gain: float, head_start: float, lines: float
) -> Score:
    made: dict[str, Score] = {
        "magnitude": Magnitude(),
        "movement": Movement(gain, head_start, lines),
        "soft-movement": SoftMovement(gain),
        "taylor": Taylor(),
        "obd": BrainDamage(),
        "random": Random(seed),
        "wanda": Wanda(),
    }
    return made[name]
