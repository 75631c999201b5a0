"""Rules of the layers that own weights, and of attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from tersify.units.labels import spread
from tersify.units.walk import Walk, argument, shape_of, units_along


def _layer(
    walk: Walk, node: fx.Node, out_dim: int, rows: Tensor, weight: str
) -> Tensor:
    """What conv and linear share: the bias goes with the rows, the output carries them."""
    bias = walk.name_of(argument(node, "bias"))
    if bias is not None:
        walk.labels.tie(rows, walk.role(bias, 0, len(rows), "follower"))
    # A bias that is computed cannot be cut, so the rows it is added to stay.
    elif argument(node, "bias") is not None:
        walk.labels.freeze(rows)
    walk.carriers.append((node, weight, out_dim, rows))
    return spread(rows, shape_of(node), out_dim)


def linear(walk: Walk, node: fx.Node) -> Any:
    weight = walk.name_of(argument(node, "weight"))
    if weight is None:
        return walk.unknown(node)
    x = walk.of(argument(node, "input"))
    outputs, inputs = shape_of(argument(node, "weight"))
    # Column j of the weight reads feature j of the input: they go together.
    walk.labels.tie(units_along(walk, x, -1), walk.role(weight, 1, inputs, "consumer"))
    return _layer(walk, node, -1, walk.role(weight, 0, outputs, "producer"), weight)


def conv(walk: Walk, node: fx.Node) -> Any:
    weight = walk.name_of(argument(node, "weight"))
    batched = len(shape_of(argument(node, "input"))) == len(
        shape_of(argument(node, "weight"))
    )
    if weight is None or not batched:
        return walk.unknown(node)
    x = units_along(walk, walk.of(argument(node, "input")), 1)
    # Weight [out, in / groups, …].
    out, per_group = shape_of(argument(node, "weight"))[:2]
    groups = argument(node, "groups")
    if groups > 1 and groups == len(x):
        # Depthwise: each filter belongs to one input channel and goes with it.
        rows = walk.role(weight, 0, out, "follower")
        walk.labels.tie(rows, x.repeat_interleave(out // groups))
        return _layer(walk, node, 1, rows, weight)
    rows = walk.role(weight, 0, out, "producer")
    columns = walk.role(weight, 1, per_group, "consumer")
    # All groups have to stay of one size, so the same place of each goes together.
    walk.labels.tie(x.reshape(groups, per_group), columns)
    if groups > 1:
        walk.labels.tie_along(rows.reshape(groups, -1), 0)
    return _layer(walk, node, 1, rows, weight)


def conv_transpose(walk: Walk, node: fx.Node) -> Any:
    weight = walk.name_of(argument(node, "weight"))
    if weight is None or argument(node, "groups") != 1:
        return walk.unknown(node)
    # A transposed convolution stores its weight as [in, out, …].
    inputs, out = shape_of(argument(node, "weight"))[:2]
    x = units_along(walk, walk.of(argument(node, "input")), 1)
    walk.labels.tie(x, walk.role(weight, 0, inputs, "consumer"))
    return _layer(walk, node, 1, walk.role(weight, 1, out, "producer"), weight)


def embedding(walk: Walk, node: fx.Node) -> Any:
    weight = walk.name_of(argument(node, "weight"))
    if weight is None:
        return walk.unknown(node)
    # Rows are words, which the user's ids name; only features can go.
    columns = walk.role(weight, 1, shape_of(argument(node, "weight"))[1], "producer")
    walk.carriers.append((node, weight, -1, columns))
    return spread(columns, shape_of(node), -1)


def batch_norm(walk: Walk, node: fx.Node) -> Any:
    x = walk.of(argument(node, "input"))
    line, carrier = units_along(walk, x, 1), None
    # Each holds one number per channel and is cut with it.
    for part in ("weight", "bias", "running_mean", "running_var"):
        name = walk.name_of(argument(node, part))
        if name is not None:
            walk.labels.tie(line, walk.role(name, 0, len(line), "follower"))
            carrier = carrier or name
        elif argument(node, part) is not None:
            walk.labels.freeze(line)
    if carrier is not None:
        walk.carriers.append((node, carrier, 1, line))
    return x


def prelu(walk: Walk, node: fx.Node) -> Any:
    x, weight = walk.of(node.args[0]), node.args[1]
    assert isinstance(weight, fx.Node)
    # One slope for all channels belongs to none of them.
    [size] = shape_of(weight)
    if size > 1 and weight in walk.stored:
        walk.labels.tie(
            units_along(walk, x, 1), walk.role(walk.stored[weight], 0, size, "follower")
        )
    return x if size == 1 or weight in walk.stored else walk.unknown(node)


def matmul(walk: Walk, node: fx.Node) -> Any:
    """Rows times columns: a contracted unit goes from both sides; a batch (a head)
    carries on.
    """
    left, right = node.args[0], node.args[1]
    if left in walk.stored or right in walk.stored:
        return walk.unknown(node)
    a, b = walk.of(left), walk.of(right)
    if (
        not (a.dim() == b.dim() >= 3)
        or walk.labels.varies(a, -2)
        or walk.labels.varies(b, -1)
    ):
        # Units as rows of the result, as in a product over tokens, stay where they are.
        return _product_of_tokens(walk, node, a, b)
    # a [.., rows, inner] times b [.., inner, columns]: inner index i of both.
    walk.labels.tie(a.narrow(-2, 0, 1).transpose(-2, -1), b.narrow(-1, 0, 1))
    # Single inner units, such as the dimensions of a head, stay: the scale of the
    # scores usually depends on their number.
    if walk.labels.varies(a, -1):
        return walk.unknown(node)
    return a.narrow(-1, 0, 1).narrow(-2, 0, 1).expand(shape_of(node))


def _product_of_tokens(walk: Walk, node: fx.Node, a: Tensor, b: Tensor) -> Any:
    """Attention's probabilities times its values: heads meet, the values' own units
    carry on.
    """
    contracted = (
        not (a.dim() == b.dim() >= 3)
        or walk.labels.varies(a, -1)
        or walk.labels.varies(a, -2)
    )
    if contracted or walk.labels.varies(b, -2):
        return walk.unknown(node)
    # Labels 0 mean that no unit is there, so nothing has to be tied.
    heads = a.narrow(-1, 0, 1).narrow(-2, 0, 1)
    out = b.narrow(-2, 0, 1).expand(shape_of(node))
    if heads.any():
        walk.labels.tie(heads, out)
    return out


def attention(walk: Walk, node: fx.Node) -> Any:
    """Queries and keys lose the same units; queries, keys and values lose the same
    heads.
    """
    q, k, v = map(walk.of, node.args[:3])
    # [.., heads, tokens, width]: softmax runs over tokens, which therefore can be no
    # units.
    mixed = any(walk.labels.varies(x, -2) for x in (q, k, v))
    if mixed or not (q.shape[:-2] == k.shape[:-2] == v.shape[:-2]):
        return walk.unknown(node)
    q, k, v = (x.narrow(-2, 0, 1) for x in (q, k, v))
    walk.labels.tie(q, k)
    if walk.labels.varies(q, -1):
        # Single dimensions of a head stay: the scale 1/√d depends on their number.
        return walk.unknown(node)
    walk.labels.tie(q.narrow(-1, 0, 1), v)
    return v.expand(shape_of(node))
