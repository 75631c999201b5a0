"""What pruning is bound to: the masks of all sites, and the layers whose units
compete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from tersify.methods.base import Bound, Site
from tersify.methods.pruning.mask import MaskTransform
from tersify.methods.pruning.scores import Score
from tersify.methods.pruning.structures import (
    Layer,
    TiledLayer,
    UnitLayer,
    tiling_named,
)


@dataclass(frozen=True, eq=False)
class PruneBound(Bound):
    """Its masks are transforms; several of them make a layer where units share
    tensors.
    """

    layers: Sequence[Layer] = ()

    def scored(self) -> list[MaskTransform]:
        """The masks of tensors whose score counts."""
        each = zip(self.sites, self.each(MaskTransform), strict=True)
        return [mask for site, mask in each if is_scored(site)]


def is_scored(site: Site) -> bool:
    """Whether the tensor has a say in which units go."""
    return not site.units or any(units.scored for units in site.units)


def layers_of(
    structure: str, sites: Sequence[Site], masks: Sequence[MaskTransform]
) -> list[Layer]:
    """What competes: the tiles of each tensor, or units that several tensors share."""
    tiling = tiling_named(structure)
    if tiling is None:
        return _unit_layers(sites, masks)
    layers: list[Layer] = []
    for site, mask in zip(sites, masks, strict=True):
        if tiling.fits(site.latent.shape):
            layers.append(TiledLayer(site, mask, tiling))
    if not layers:
        raise ValueError(
            f"{sites[0].name!r} has no {structure}; choose another structure or other weights"
        )
    return layers


def weights_of(layer: Layer) -> int:
    """How many weights are scored for it."""
    return sum(site.latent.numel() for site, _ in layer.scored)


def scores_of(layers: Sequence[Layer], score: Score) -> Iterator[Tensor]:
    """The scores of each layer's units, from those of all their weights together."""
    found = iter(score.of_all([one for layer in layers for one in layer.scored]))
    for layer in layers:
        yield layer.scores([next(found) for _ in layer.scored])


def _unit_layers(sites: Sequence[Site], masks: Sequence[MaskTransform]) -> list[Layer]:
    groups: dict[str, list[tuple[Site, MaskTransform, int]]] = {}
    for site, mask in zip(sites, masks, strict=True):
        for part, units in enumerate(site.units):
            groups.setdefault(units.group, []).append((site, mask, part))
    return list(map(UnitLayer, groups.values()))


def above(scores: Tensor, threshold: float) -> Tensor:
    """Those above the threshold, and the best one in any case."""
    kept = scores > threshold
    # A layer without any unit would cut the network in two.
    kept.view(-1)[scores.reshape(-1).argmax()] = True
    return kept
