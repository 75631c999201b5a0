"""A list of tensors as one vector and back, in as few calls as their shapes allow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor


class ShapeRuns:
    """Tensors in order, known by their shapes alone; equal shapes that follow each
    other are one run.

    A call for every tensor is what a step of a small network waits for. A run is cut
    into its tensors by one call, and tensors that differ in their first size only are
    joined by one.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        shapes = [tuple(t.shape) for t in tensors]
        self._runs = [(shape, len(list(run))) for shape, run in groupby(shapes)]
        self._sizes = [count * torch.Size(shape).numel() for shape, count in self._runs]
        # torch.cat along the first dimension demands equal shapes behind it;
        # `all(shapes)` excludes 0-dim tensors, which it refuses.
        self._joins_at_once = len({shape[1:] for shape in shapes}) == 1 and all(shapes)
        self._are_numbers = not any(shapes)

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """The tensors, of the shapes that are known, end to end."""
        if self._are_numbers:
            return torch.stack(list(tensors))
        if not self._joins_at_once:
            tensors = [t.reshape(-1) for t in tensors]
        # Not `view`: what is joined from channels-last tensors lies in their layout.
        return torch.cat(list(tensors)).reshape(-1)

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """The vector's parts in their shapes: views of it."""
        parts = flat.split(self._sizes) if len(self._runs) > 1 else (flat,)
        found: list[Tensor] = []
        for part, (shape, count) in zip(parts, self._runs, strict=True):
            if count > 1:
                found += part.view(count, *shape).unbind()
            else:
                found.append(part if len(shape) == 1 else part.view(shape))
        return found
