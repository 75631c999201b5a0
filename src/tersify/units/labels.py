"""Which slices of which parameters are one unit: a union-find over (parameter,
dimension, index).
"""

from __future__ import annotations

import torch
from torch import Tensor

FIXED = 0  # the label of whatever is no unit and has to stay


class Labels:
    """Every index along a parameter's dimension has a number; numbers that must go
    together share a root.

    The labels of an activation are a tensor of its shape. They are kept as expanded
    views (stride 0), so they take no memory and what does not vary along a dimension is
    seen at once.
    """

    def __init__(self, packed: dict[str, tuple[str, int]]) -> None:
        self._parent = [FIXED]
        self._first: dict[tuple[str, int], int] = {}
        self._size: dict[tuple[str, int], int] = {}
        # a part's name → the parameter that holds it, and the row it starts at
        self._packed = packed

    def holder(self, parameter: str) -> str:
        return self._packed.get(parameter, (parameter, 0))[0]

    def along(self, parameter: str, dim: int, size: int) -> Tensor:
        """The labels along one dimension of a parameter."""
        name, offset = self._packed.get(parameter, (parameter, 0))
        # Queries, keys and values lie below each other: they share columns, not rows.
        offset = offset if dim == 0 else 0
        if (name, dim) not in self._first:
            # A packed attention weight holds queries, keys and values one behind
            # another.
            full = 3 * size if parameter in self._packed and dim == 0 else size
            self._first[name, dim] = len(self._parent)
            self._size[name, dim] = full
            # Every new number is its own root.
            self._parent.extend(range(len(self._parent), len(self._parent) + full))
        start = self._first[name, dim] + offset
        return torch.arange(start, start + size)

    def places(self) -> dict[tuple[str, int], Tensor]:
        """Roots along every labelled (parameter, dimension); FIXED where nothing may
        go.
        """
        return {
            key: self.roots(torch.arange(first, first + self._size[key]))
            for key, first in self._first.items()
        }

    def tie(self, a: Tensor, b: Tensor) -> None:
        """Elementwise: what a names and what b names goes together. FIXED holds
        whatever it is tied to.
        """
        a, b = compact(*torch.broadcast_tensors(a, b))
        pairs = torch.stack([a.reshape(-1), b.reshape(-1)], 1)
        # The loop below is plain Python, and large activations repeat the same pairs.
        if len(pairs) > 4096:
            pairs = torch.unique(pairs, dim=0)
        for x, y in pairs.tolist():
            x, y = self._root(x), self._root(y)
            if x != y:
                # The smaller number is the root, so FIXED (0) always wins.
                self._parent[max(x, y)] = min(x, y)

    def freeze(self, labels: Tensor) -> None:
        self.tie(labels, torch.zeros((), dtype=torch.int64))

    def tie_along(self, labels: Tensor, dim: int) -> None:
        """All indices of one dimension go together."""
        self.tie(labels, labels.narrow(dim, 0, 1))

    def varies(self, labels: Tensor, dim: int) -> bool:
        # An expanded view holds one label along this dimension.
        if labels.shape[dim] <= 1 or labels.stride(dim) == 0:
            return False
        roots = self.roots(labels)
        return not bool((roots == roots.narrow(dim, 0, 1)).all())

    def roots(self, labels: Tensor) -> Tensor:
        # Look up each distinct label once; large activations hold few of them.
        [small] = compact(labels)
        found, inverse = torch.unique(small, return_inverse=True)
        roots = torch.tensor(list(map(self._root, found.tolist())), dtype=torch.int64)
        return roots[inverse].reshape(small.shape).expand(labels.shape)

    def _root(self, label: int) -> int:
        parent = self._parent
        while parent[label] != label:
            # Path halving keeps later look-ups short.
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label


def fixed(shape: torch.Size | tuple[int, ...]) -> Tensor:
    return torch.zeros((), dtype=torch.int64).expand(tuple(shape))


def spread(labels: Tensor, shape: torch.Size | tuple[int, ...], dim: int) -> Tensor:
    """Labels along one dimension, the same at every other position."""
    ones = [1] * len(shape)
    ones[dim] = -1
    return labels.reshape(ones).expand(tuple(shape))


def compact(*labels: Tensor) -> list[Tensor]:
    """Tensors of one shape without the dimensions along which all of them are expanded
    views.
    """
    first = labels[0]
    for dim in range(first.dim()):
        # One index stands for the whole dimension, which keeps the union-find small.
        if all(x.stride(dim) == 0 for x in labels):
            labels = tuple(x.narrow(dim, 0, min(1, x.shape[dim])) for x in labels)
    return list(labels)
