"""What goes together: single weights, N of every M, blocks, kernels, and units that
span several tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.methods.base import Site
from tersify.methods.pruning.mask import MaskTransform


class Tiling(Protocol):
    """How one tensor's weights form units: scores of weights → scores of units (rows ×
    units), and masks back.
    """

    def units(self, scores: Tensor) -> Tensor: ...
    def elements(self, kept: Tensor, shape: torch.Size) -> Tensor: ...
    def fits(self, shape: torch.Size) -> bool: ...


class Elements:
    def units(self, scores: Tensor) -> Tensor:
        return _matrix(scores)

    def elements(self, kept: Tensor, shape: torch.Size) -> Tensor:
        return kept if kept.shape == shape else kept.reshape(shape)

    def fits(self, shape: torch.Size) -> bool:
        return True


class EveryM:
    """Groups of M weights that follow each other along the input; a last, shorter group
    keeps as many at most.
    """

    def __init__(self, m: int) -> None:
        self._m = m

    def units(self, scores: Tensor) -> Tensor:
        # Input channels last: N:M hardware skips along the dimension that a product
        # sums over.
        rows = scores.movedim(1, -1) if scores.ndim > 1 else scores
        # Padding ranks below all, so it is what a short group loses first.
        return F.pad(rows, (0, -rows.shape[-1] % self._m), value=-torch.inf).reshape(
            -1, self._m
        )

    def elements(self, kept: Tensor, shape: torch.Size) -> Tensor:
        if len(shape) == 1:
            return kept.reshape(-1)[: shape[0]]
        width = shape[1] + -shape[1] % self._m
        return kept.reshape(shape[0], *shape[2:], width)[..., : shape[1]].movedim(-1, 1)

    def fits(self, shape: torch.Size) -> bool:
        return True


class Blocks:
    """Tiles of r×c of the weight as a matrix (outputs × the rest); those on the edge
    may be smaller.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self._tile = (rows, columns)

    def units(self, scores: Tensor) -> Tensor:
        matrix = _matrix(scores)
        # A mean and not a sum: a smaller tile on the edge must not look worthless.
        return self._tile_sums(matrix) / self._tile_sums(torch.ones_like(matrix))

    def _tile_sums(self, matrix: Tensor) -> Tensor:
        r, c = self._tile
        padded = F.pad(matrix, (0, -matrix.shape[1] % c, 0, -matrix.shape[0] % r))
        return padded.reshape(padded.shape[0] // r, r, padded.shape[1] // c, c).sum(
            (1, 3)
        )

    def elements(self, kept: Tensor, shape: torch.Size) -> Tensor:
        r, c = self._tile
        height, width = shape[0], shape.numel() // shape[0]
        return (
            kept.repeat_interleave(r, 0)
            .repeat_interleave(c, 1)[:height, :width]
            .reshape(shape)
        )

    def fits(self, shape: torch.Size) -> bool:
        return len(shape) >= 2


class Kernels:
    """The window between one input and one output channel of a convolution."""

    def units(self, scores: Tensor) -> Tensor:
        return scores.flatten(2).mean(2)

    def elements(self, kept: Tensor, shape: torch.Size) -> Tensor:
        return kept.reshape(*shape[:2], *[1] * (len(shape) - 2)).expand(shape)

    def fits(self, shape: torch.Size) -> bool:
        return len(shape) >= 3


TILINGS: dict[str, Callable[[], Tiling]] = {"element": Elements, "kernel": Kernels}
GROUPED = ("filter", "neuron", "row", "channel", "head")


def tiling_named(structure: str) -> Tiling | None:
    """The tiling of a structure's name, or None where its units span several tensors."""
    if structure in GROUPED:
        return None
    if structure in TILINGS:
        return TILINGS[structure]()
    # N itself is no part of the tiling: it sets the amount, in Prune.fraction.
    if nm := n_of_m(structure):
        return EveryM(nm[1])
    if block := re.fullmatch(r"block-(\d+)x(\d+)", structure):
        rows, columns = int(block[1]), int(block[2])
        if rows < 1 or columns < 1:
            raise ValueError(f"a block must be at least 1x1, got {structure!r}")
        return Blocks(rows, columns)
    known = ", ".join((*TILINGS, *GROUPED))
    raise ValueError(
        f"structure must be one of {known}, 'N:M' such as '2:4' or 'block-4x4', got {structure!r}"
    )


def n_of_m(structure: str) -> tuple[int, int] | None:
    """(N, M) of 'N:M', which keeps N of every M weights."""
    parts = re.fullmatch(r"(\d+):(\d+)", structure)
    if parts is None:
        return None
    n, m = int(parts[1]), int(parts[2])
    if not 1 <= n <= m:
        raise ValueError(
            f"structure {structure!r} keeps {n} of every {m} weights; N must be 1..M: write {m}:{n}?"
        )
    return n, m


class Layer(Protocol):
    """The units of which a share goes: those of one tensor, or of tensors that share
    their units.
    """

    name: str
    scored: Sequence[tuple[Site, MaskTransform]]  # the tensors whose worth counts

    def scores(self, of_weights: Sequence[Tensor]) -> Tensor: ...
    def keep_(self, kept: Tensor) -> None: ...


class TiledLayer:
    def __init__(self, site: Site, mask: MaskTransform, tiling: Tiling) -> None:
        self.name, self._tiling = site.name, tiling
        self.scored: Sequence[tuple[Site, MaskTransform]] = [(site, mask)]

    def scores(self, of_weights: Sequence[Tensor]) -> Tensor:
        (scores,) = of_weights
        return self._tiling.units(scores)

    def mask_for(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The mask of the tensor, and what it becomes."""
        mask = self.scored[0][1].mask
        return mask, self._tiling.elements(kept, mask.shape)

    def keep_(self, kept: Tensor) -> None:
        mask, wanted = self.mask_for(kept)
        mask.copy_(wanted)


def keep_all_(choices: Sequence[tuple[Layer, Tensor]]) -> None:
    """Every layer keeps its units; masks that belong to one layer each take one call."""
    tiles = [layer.mask_for(k) for layer, k in choices if isinstance(layer, TiledLayer)]
    if len(tiles) == len(choices):
        masks, wanted = zip(*tiles, strict=True)
        torch._foreach_copy_(list(masks), list(wanted))
        return
    for layer, kept in choices:
        layer.keep_(kept)


class UnitLayer:
    """Tensors whose slices belong to the same units; a unit's score is its mean over
    the scored ones.
    """

    def __init__(self, members: Sequence[tuple[Site, MaskTransform, int]]) -> None:
        self._members = members
        judged = [
            (s, m, s.units[part]) for s, m, part in members if s.units[part].scored
        ]
        self.scored: Sequence[tuple[Site, MaskTransform]] = [
            (site, mask) for site, mask, _ in judged
        ]
        self._units = [units for _, _, units in judged]
        self.name = judged[0][0].name

    def scores(self, of_weights: Sequence[Tensor]) -> Tensor:
        sums, weights = [], []
        for scores, units in zip(of_weights, self._units, strict=True):
            # (indices along the units' dimension, weights of each slice).
            slices = scores.movedim(units.dim, 0).flatten(1)
            # A product with the units' indicators: unlike a scattered sum it comes out
            # the same every time.
            belongs = (units.unit[None] == torch.arange(units.count)[:, None]).to(
                slices
            )
            sums.append(belongs @ slices.sum(1))
            weights.append(belongs.sum(1) * slices.shape[1])
        # (1, units): the mean over all scored weights of a unit, whichever tensors they
        # lie in.
        return (torch.stack(sums).sum(0) / torch.stack(weights).sum(0).clamp(min=1))[
            None
        ]

    def keep_(self, kept: Tensor) -> None:
        for site, mask, part in self._members:
            units, whole = site.units[part], mask.mask
            unit = units.unit.to(whole.device)
            # -1 is of no unit, and always stays.
            along = torch.where(unit < 0, True, kept[0][unit.clamp(min=0)])
            # A tensor may belong to two groups, one along each dimension, so each takes
            # away only.
            whole.logical_and_(along.view(-1, *[1] * (whole.ndim - units.dim - 1)))


def _matrix(scores: Tensor) -> Tensor:
    if scores.ndim == 2:
        return scores
    return scores.reshape(len(scores) if scores.ndim > 1 else 1, -1)
