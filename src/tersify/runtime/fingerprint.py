"""What a captured graph computes, as it stood when it was captured: two captures of the
same function give equal ones.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tersify.runtime.capture import Graph, Ref
from tersify.runtime.checksums import checksum
from tersify.runtime.nested import map_leaves, signature


def fingerprint(graph: Graph) -> Any:
    """The calls with their numbers, the results, and all bits of the constants."""
    return (
        graph.inputs,
        [(c.target, _plain((c.args, dict(c.kwargs))), c.results) for c in graph.calls],
        _plain(graph.outputs),
        dict(graph.written),
        {name: bits(tensor) for name, tensor in graph.constants.items()},
    )


def bits(tensor: Tensor) -> Any:
    return tuple(tensor.shape), tensor.dtype, checksum(tensor)


def _plain(nested: Any) -> Any:
    named = map_leaves(
        nested, lambda leaf: ("value", leaf.name) if type(leaf) is Ref else leaf
    )
    return signature(named)
