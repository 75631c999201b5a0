"""Which activations are the same for every input, and what they are then.

A filter of zeros gives its bias, a batch norm of zeros its β, a ReLU keeps a zero: the
graph is walked once with the weights alone. `unknown` marks the positions that depend
on the input.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from tersify.units.operation_rules import operation_name, writes_in_place
from tersify.units.trace import Trace
from tersify.units.walk import argument, shape_of


class Constant(NamedTuple):
    unknown: Tensor  # bool
    value: Tensor  # 0 where unknown


_LAYERS = (
    {f"conv{d}d" for d in (1, 2, 3)}
    | {f"conv_transpose{d}d" for d in (1, 2, 3)}
    | {"linear"}
)
_POINTWISE = {
    "dropout",
    "feature_dropout",
    "alpha_dropout",
    "contiguous",
    "hardswish",
    "relu6",
    "selu",
    "celu",
    "mish",
}
# Whatever one unknown value touches is unknown; the operation itself says what it
# touches.
_SPREADING = {
    *(
        f"{kind}_pool{d}d"
        for kind in ("max", "avg", "adaptive_avg", "adaptive_max")
        for d in (1, 2, 3)
    ),
    *(
        "mean",
        "sum",
        "amax",
        "amin",
        "view",
        "reshape",
        "_unsafe_view",
        "unflatten",
        "expand",
        "flatten",
        "permute",
    ),
    *(
        "transpose",
        "t",
        "movedim",
        "squeeze",
        "unsqueeze",
        "stack",
        "cat",
        "select",
        "slice",
        "split",
        "narrow",
        "chunk",
    ),
    *("split_with_sizes", "unbind", "pad", "constant_pad_nd"),
}


@torch.no_grad()
def constants(traced: Trace, tensors: dict[str, Tensor]) -> dict[fx.Node, Any]:
    """For every node a Constant, a tuple of them, or None where nothing is known."""
    found: dict[fx.Node, Any] = {}
    for node in traced.graph.nodes:
        if node in traced.stored:
            # A stored tensor is known everywhere.
            value = tensors[traced.stored[node]].float().cpu()
            found[node] = Constant(torch.zeros_like(value, dtype=torch.bool), value)
        elif node.op == "call_function":
            found[node] = _evaluate(node, found)
            if node.args and writes_in_place(node):
                found[node.args[0]] = found[node]
    return found


def _evaluate(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    name = operation_name(node)
    if name == "getitem":
        # One of several results, such as those of `split`.
        parts: Any = found.get(node.args[0])  # type: ignore[arg-type]
        return None if parts is None else parts[node.args[1]]
    value = node.meta.get("val")
    # Ids and masks: constants are followed through floats only.
    if isinstance(value, Tensor) and not value.is_floating_point():
        return None
    rule = _RULES.get(name)
    # torch's own tag for operations that work number by number.
    if rule is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
        rule = _pointwise
    return None if rule is None else rule(node, found)


def _known(unknown: Tensor, value: Tensor) -> Constant:
    return Constant(unknown, torch.where(unknown, 0.0, value))


def _call(node: fx.Node, found: dict[fx.Node, Any], part: int) -> Any:
    """The operation itself, on what is unknown (as 0 and 1) or on the values."""

    def given(other: fx.Node) -> Any:
        # Clones, because the operation may work in place.
        pair = found[other]
        return (
            pair[part].float().clone()
            if pair is not None
            else torch.zeros(shape_of(other))
        )

    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), given)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _nothing_known(node: fx.Node) -> Constant:
    return Constant(
        torch.ones(shape_of(node), dtype=torch.bool), torch.zeros(shape_of(node))
    )


def _filled(node: fx.Node, found: dict[fx.Node, Any]) -> dict[fx.Node, Any]:
    """The inputs, with 'nothing known' spelled out."""
    return {n: found.get(n) or _nothing_known(n) for n in node.all_input_nodes}


def _layer(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    weight = found.get(argument(node, "weight"))
    # A weight that is computed from the input.
    if weight is None or weight.unknown.any():
        return None
    inputs = _filled(node, found)
    x, bias = inputs[argument(node, "input")], argument(node, "bias")
    # A weight of zero reads nothing, and padding is known: both fall out of the layer's
    # own arithmetic.
    reads = {
        **inputs,
        argument(node, "weight"): Constant(weight.value != 0, weight.value),
    }
    if bias is not None:
        reads[bias] = Constant(
            torch.zeros_like(inputs[bias].unknown), inputs[bias].value
        )
    # With 1 for every unknown input and for every non-zero weight, the layer counts how
    # many unknown inputs each output reads. Counts are whole numbers, and 0.5 leaves
    # room for rounding.
    touched = _call(node, {**reads, argument(node, "input"): x}, 0)
    return _known(touched > 0.5, _call(node, inputs, 1))


def _batch_norm(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    """A channel with γ = 0 gives β whatever comes in."""
    inputs = _filled(node, found)
    unknown = inputs[argument(node, "input")].unknown
    if argument(node, "weight") is not None:
        shape = [1] * unknown.dim()
        shape[1] = -1
        # [1, C, 1, …] over [N, C, …].
        unknown = unknown & (inputs[argument(node, "weight")].value != 0).reshape(shape)
    return _known(unknown, _call(node, inputs, 1))


def _spreading(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    inputs = _filled(node, found)
    # Run on 0 and 1, the operation moves, adds or maximises the marks: a result is
    # known only where every mark it depends on is 0.
    unknown, value = _call(node, inputs, 0), _call(node, inputs, 1)
    if isinstance(unknown, Tensor):
        return _known(unknown != 0, value)
    return tuple(_known(u != 0, v) for u, v in zip(unknown, value, strict=True))


def _attention(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    """Softmax weights add up to 1, so equal values over all tokens stay that value."""
    values = _filled(node, found)[node.args[2]]  # type: ignore[index]
    first = values.value.narrow(-2, 0, 1)
    same = ~(values.unknown | (values.value != first)).any(-2, keepdim=True)
    return _known(~same.expand(shape_of(node)), first.expand(shape_of(node)))


def _product(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    """Zero times anything is zero."""
    inputs = _filled(node, found)
    left, right = (inputs[n] for n in node.args[:2])  # type: ignore[index]
    # Counts the pairs of factors that both may differ from zero. Where there is none
    # the sum is 0; other constants are not followed through products.
    touched = torch.matmul(
        (left.unknown | (left.value != 0)).float(),
        (right.unknown | (right.value != 0)).float(),
    )
    return Constant(touched > 0.5, torch.zeros_like(touched))


def _pointwise(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    if any(not n.meta["val"].is_floating_point() for n in tensors):
        return None
    inputs = _filled(node, found)
    unknown = torch.zeros(shape_of(node), dtype=torch.bool)
    for other in tensors:
        unknown = unknown | inputs[other].unknown
    value = _call(node, inputs, 1)
    if operation_name(node) == "mul":
        # A known zero factor makes the product known, whatever the other one is.
        zero = torch.zeros_like(unknown)
        for other in tensors:
            zero = zero | (~inputs[other].unknown & (inputs[other].value == 0))
        unknown, value = unknown & ~zero, torch.where(zero, 0.0, value)
    return _known(unknown, value)


_RULES = {
    **dict.fromkeys(_POINTWISE, _pointwise),
    **dict.fromkeys(_SPREADING, _spreading),
    **dict.fromkeys(_LAYERS, _layer),
    "batch_norm": _batch_norm,
    "scaled_dot_product_attention": _attention,
    "matmul": _product,
    "bmm": _product,
}
