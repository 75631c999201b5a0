"""The three words every method is written in: Site (a weight), Transform (its state),
Method (the plan).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from tersify.methods.flat_weights import FlatWeights, Prepared
from tersify.methods.method_settings import check_setting, table_of
from tersify.methods.weight_math import dense as dense
from tersify.methods.weight_math import straight_through as straight_through
from tersify.schedules import Progress
from tersify.tensor import CompressedTensor
from tersify.units import UnitGroup


@dataclass(frozen=True, eq=False)
class Units:
    """Slices of a tensor that belong to units, such as filters, which several tensors
    may share by the group's name.
    """

    group: str
    dim: int
    unit: Tensor  # for each index along `dim` its unit, or -1
    count: int  # units of the group
    # whether the tensor has a say in what a unit is worth, or only loses its slices
    # with it
    scored: bool = True


@dataclass(frozen=True, eq=False)
class Site:
    """One weight of the network, with every place that holds it (tied weights have
    several).
    """

    name: str
    owners: tuple[tuple[nn.Module, str], ...]
    aliases: tuple[str, ...]
    latent: nn.Parameter
    chain: list[Transform] = field(default_factory=list)
    # mean squared gradients over the calibration batches, where there are any
    sensitivity: Tensor | None = None
    # of the input each weight meets in those batches, where a method asks for it
    input_norm: Tensor | None = None
    units: tuple[Units, ...] = ()  # for structured methods

    @torch.no_grad()
    def entering(self, transform: Transform | None = None) -> Tensor:
        """The value that enters `transform`; without one, what the chain gives so far."""
        value = self.latent.detach()
        # A chain runs front to back (pruner, then quantizer), so only the links before
        # `transform` have changed the latent.
        for link in self.chain:
            if link is transform:
                break
            value = link(value)
        return value


@dataclass(frozen=True, eq=False)
class Network:
    """The whole model, every site in it and, where an example told, the units that can
    go.
    """

    model: nn.Module
    sites: Sequence[Site]
    units: Sequence[UnitGroup] | None = None


@dataclass(frozen=True)
class Step:
    """What a method may look at when a batch begins."""

    progress: Progress
    model: nn.Module
    inputs: Any = None
    targets: Any = None
    # not a batch: every schedule shall be at its end, be there training or not
    without_training: bool = False
    # the network to be saved
    packed: Callable[[], Mapping[str, CompressedTensor | Tensor]] | None = None


class Transform(nn.Module):
    """How training uses one latent tensor. Whatever changes lives here, in buffers and
    parameters.
    """

    # Buffers that `forward` does not read, such as counts: a prepared weight stays true
    # while they change, and nobody need look at them in every step.
    beside_the_weight: ClassVar[frozenset[str]] = frozenset()

    def forward(self, latent: Tensor) -> Tensor:
        """The weight that training uses for `latent`, with a gradient that reaches it."""
        raise NotImplementedError

    @property
    def passes_in_training(self) -> bool:
        """Whether training uses the latent as it comes."""
        return False

    def pack(self, upstream: Tensor | CompressedTensor) -> CompressedTensor:
        """What the weight is in eval mode; `upstream` is the latent or what the
        transform before made.
        """
        raise NotImplementedError

    def start_(self, latent: Tensor) -> None:
        """Change `latent` for training, such as its size; called once, when the whole
        recipe is attached.
        """

    def project_(self, latent: Tensor) -> None:
        """Pull `latent`, or own parameters, back into their allowed set before a batch."""

    def penalty(self, latent: Tensor) -> Tensor | None:
        """A term for the loss that depends on `latent`, or None."""
        return None


TransformT = TypeVar("TransformT", bound=Transform)


@dataclass(frozen=True, eq=False)
class Bound:
    """A method at work: its sites, the transform of each, and state they share."""

    sites: Sequence[Site]
    transforms: Sequence[Transform]
    shared: nn.Module | None = None

    def each(self, kind: type[TransformT]) -> list[TransformT]:
        """The transforms, known to be of `kind`."""
        return [t for t in self.transforms if isinstance(t, kind)]

    def buffers(self, name: str) -> list[Tensor]:
        """The buffer that each transform holds under this name."""
        # Past the module's own look-up, which would be the slower half of what is done
        # with them in a step.
        return cast(
            "list[Tensor]", [transform._buffers[name] for transform in self.transforms]
        )

    def entering(self) -> list[Tensor]:
        """What enters each transform now."""
        return [
            site.entering(transform)
            for site, transform in zip(self.sites, self.transforms, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A frozen description of what a weight should become.

    A subclass sets `quantizes` (it makes codes with a codebook) and `keeps_zeros` (a
    zero that comes in stays zero), which decide what it may be chained with, and
    implements `transform`.
    """

    name: ClassVar[str]
    quantizes: ClassVar[bool] = True
    keeps_zeros: ClassVar[bool] = True

    @property
    def needs_calibration(self) -> bool:
        """Whether its sites must carry their sensitivity, which takes data."""
        return False

    @property
    def needs_inputs(self) -> bool:
        """Whether its sites must carry their input norms, which takes data."""
        return False

    @property
    def needs_length(self) -> bool:
        """Whether what it does before a batch depends on how far training has come."""
        # A method that overrides `update` follows a schedule, and a schedule needs to
        # know how long training lasts.
        return type(self).update is not Method.update

    @property
    def needs_units(self) -> bool:
        """Whether it works on filters, neurons or heads, with all tensors that belong
        to them.
        """
        return False

    @property
    def needs_batches(self) -> bool:
        """Whether its update looks at the batch, so that `session.step` must be given
        inputs and targets.
        """
        return False

    def gather(self, sites: Sequence[Site], network: Network) -> Sequence[Site]:
        """The sites it works on: `sites`, then others of `network` that change with
        them, such as a filter's bias.
        """
        return sites

    def transform(self, site: Site) -> Transform:
        """The transform of one weight, `site`."""
        raise NotImplementedError

    def bind(self, sites: Sequence[Site]) -> Bound:
        """The method at work on `sites`; a method with state that they share makes it
        here.
        """
        return Bound(sites, list(map(self.transform, sites)))

    def project_(self, bound: Bound) -> None:
        """Before each batch: every transform of `bound` pulls its latent back. A method
        may do all at once.
        """
        for site, transform in zip(bound.sites, bound.transforms, strict=True):
            transform.project_(site.latent)

    def update(self, bound: Bound, step: Step) -> None:
        """Move schedules and searches of `bound` on; called before each batch, which
        `step` describes.
        """

    def penalty(self, bound: Bound) -> Tensor | None:
        """A term for the loss of all the sites of `bound` together, or None."""
        return None

    def prepare(
        self, bound: Bound, weights: FlatWeights
    ) -> Tensor | tuple[Tensor, Tensor] | Prepared | None:
        """All its weights for the coming forward pass at once: `forward` of each
        transform, end to end in one vector.

        Called for `bound` at the end of every step. `weights.values` is what enters the
        transforms. Where they have parameters to learn, torch records what happens here
        and differentiates it, unless a `Prepared` brings its own way back. Where they
        have none, a gradient passes to `weights.values` as it comes; return (weights,
        gain) to multiply it, or keep it where `gain` is true. None: each transform
        computes its weight when its module reads it, which is always right and slower.
        """
        return None

    def status(self, bound: Bound) -> dict[str, float]:
        """Figures of `bound` for a progress display, such as the threshold."""
        return {}

    def to_table(self) -> dict[str, Any]:
        """The method as a TOML table: its name and every field that differs from the
        default.
        """
        return table_of(self)

    def with_settings(self, settings: Mapping[str, Any]) -> Method:
        """The same method with `settings` changed, checked as in a recipe's file."""
        # `replace` runs `__post_init__`, which checks ranges; types must be checked
        # here, because dataclasses accept any.
        for name, value in settings.items():
            check_setting(self, name, value)
        return replace(self, **settings) if settings else self
