"""Rules of the operations that move, merge or reshape values."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, fx

from tersify.units.labels import fixed, spread
from tersify.units.walk import Walk, argument, shape_of, units_along


def pointwise(walk: Walk, node: fx.Node) -> Any:
    """Units whose values are combined position by position can only go together. One
    value that is broadcast over many units couples none of them.
    """
    nodes = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    # Activations first: a stored tensor is matched against what they are together.
    result = fixed(())
    for other in (n for n in nodes if n not in walk.stored):
        result = _broadcast_units(walk, result, walk.of(other))
    result = result.expand(shape_of(node))
    for other in (n for n in nodes if n in walk.stored):
        result = _meet_stored(walk, result, other)
    return result


def _broadcast_units(walk: Walk, a: Tensor, b: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(a.shape, b.shape)
    # For each operand: the dimensions along which its units differ, and those where it
    # has one value that broadcasting repeats.
    units, single = [], []
    for x in (a, b):
        wide = x.expand(shape)
        missing = len(shape) - x.dim()
        units.append({d for d in range(len(shape)) if walk.labels.varies(wide, d)})
        single.append(
            {d for d in range(len(shape)) if d < missing or x.shape[d - missing] == 1}
        )
    for one, many, x, y in ((1, 0, b, a), (0, 1, a, b)):
        if units[many] and units[many] <= single[one]:
            # One value for many units (an attention mask, a gate): if it is a unit
            # itself it has to stay.
            walk.labels.freeze(x)
            if units[one]:
                walk.labels.freeze(y)
            return y.expand(shape)
    # Values that meet position by position, as in a residual addition: unit i of one
    # and unit i of the other can only go together.
    a, b = a.expand(shape), b.expand(shape)
    if a.dim() and b.dim():
        walk.labels.tie(a, b)
    return a if a.dim() else b


def _meet_stored(walk: Walk, x: Tensor, node: fx.Node) -> Tensor:
    """A learned factor or summand per unit, such as a layer's scale, goes with its
    unit.
    """
    # Broadcasting aligns shapes at their ends, so dimension d of x is dimension d −
    # (difference of ranks) of the stored tensor.
    name, own = walk.stored[node], shape_of(node)
    free = [d for d in range(x.dim()) if walk.labels.varies(x, d)]
    places = [d - (x.dim() - len(own)) for d in free]
    places = [p for p in places if p >= 0 and own[p] > 1]
    if not places:
        return x
    # A learned matrix over two dimensions of units has no single owner of an index.
    if len(places) > 1:
        walk.labels.freeze(x)
        return x
    line = walk.role(name, places[0], own[places[0]], "follower")
    walk.labels.tie(units_along(walk, x, places[0] - len(own)), line)
    return x


def keeps_channels(walk: Walk, node: fx.Node) -> Any:
    """Pooling and resampling: every channel by itself, positions mixed."""
    x = walk.of(node.args[0])
    # [N, C, positions…]; fewer dimensions would leave out the batch or the positions.
    value = node.meta["val"]
    if not isinstance(value, Tensor) or x.dim() < 3:
        return walk.unknown(node)
    return spread(units_along(walk, x, 1), value.shape, 1)


def reduce(walk: Walk, node: fx.Node) -> Any:
    x = walk.of(node.args[0])
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if dims is None:
        # Without dimensions torch reduces over all of them.
        dims = list(range(x.dim()))
    elif isinstance(dims, int):
        dims = [dims]
    # A sum or maximum across units mixes them: each of them has to stay.
    if not isinstance(node.meta["val"], Tensor) or any(
        walk.labels.varies(x, d) for d in dims
    ):
        return walk.unknown(node)
    # Labels do not vary along these dimensions, so any one index stands for all.
    for d in dims:
        x = x.narrow(d, 0, 1)
    return (
        x.reshape(shape_of(node))
        if x.numel() == math.prod(shape_of(node))
        else walk.unknown(node)
    )


def along_dim(walk: Walk, node: fx.Node) -> Any:
    """Softmax and its like: fine along positions, not across units."""
    x = walk.of(node.args[0])
    return walk.unknown(node) if walk.labels.varies(x, argument(node, "dim")) else x


def same(walk: Walk, node: fx.Node) -> Any:
    return walk.of(node.args[0])


def view(walk: Walk, node: fx.Node) -> Any:
    """A size that the program writes out has to stay; one it leaves open (-1) may
    shrink.
    """
    x = walk.of(node.args[0])
    out = x.reshape(shape_of(node))
    sizes = next(
        a
        for a in (*node.args[1:], *node.kwargs.values())
        if isinstance(a, (list, tuple))
    )
    # `unflatten` gives sizes for one dimension only, which begin at `dim`.
    start = 0 if len(sizes) == out.dim() else int(argument(node, "dim")) % x.dim()
    for d, size in enumerate(sizes, start):
        # Tied along d, the units of this dimension go all together or not at all, so
        # the written size stays right while any of them is there.
        if size != -1 and walk.labels.varies(out, d):
            walk.labels.tie_along(out, d)
    return out


def expand(walk: Walk, node: fx.Node) -> Any:
    x = walk.of(node.args[0])
    out = x.expand(shape_of(node))
    for d, size in enumerate(node.args[1]):  # type: ignore[arg-type]
        if size != -1 and walk.labels.varies(out, d):
            walk.labels.tie_along(out, d)
    return out


def expand_as(walk: Walk, node: fx.Node) -> Any:
    return walk.of(node.args[0]).expand(shape_of(node))


def rearrange(walk: Walk, node: fx.Node) -> Any:
    """Permutations, flattening, new and dropped dimensions: the labels move as the
    values do.
    """
    return node.target(*fx.map_arg(node.args, walk.of), **node.kwargs)  # type: ignore[operator]


def cat(walk: Walk, node: fx.Node) -> Any:
    parts = node.args[0]
    # A learned token in front of others, for instance: its values are no units.
    if any(p in walk.stored for p in parts):  # type: ignore[union-attr]
        return walk.unknown(node)
    return rearrange(walk, node)


def take(walk: Walk, node: fx.Node) -> Any:
    """Selecting by number is fine along positions; along units the numbers would mean
    others afterwards.
    """
    x = walk.of(node.args[0])
    value = node.meta["val"]
    # A slice of everything.
    if isinstance(value, Tensor) and value.shape == x.shape:
        return x
    if walk.labels.varies(x, argument(node, "dim")):
        return walk.unknown(node)
    return rearrange(walk, node)


def pad(walk: Walk, node: fx.Node) -> Any:
    x = walk.of(node.args[0])
    pads = node.args[1]
    assert isinstance(pads, (list, tuple))
    # torch lists pads from the last dimension to the first, two numbers each.
    for i in range(len(pads) // 2):
        d = x.dim() - 1 - i
        if any(pads[2 * i : 2 * i + 2]):
            # New entries beside units would be units that no layer makes.
            if walk.labels.varies(x, d):
                return walk.unknown(node)
            x = x.narrow(d, 0, 1).expand(
                [shape_of(node)[d] if k == d else s for k, s in enumerate(x.shape)]
            )
    return x


def getitem(walk: Walk, node: fx.Node) -> Any:
    source, place = cast("tuple[fx.Node, int]", node.args)
    value = walk.values[source]
    return value[place] if isinstance(value, tuple) else walk.unknown(node)
