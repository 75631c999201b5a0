"""Fold what follows a sum into the sum's finish: norms, residual additions, activations, a mean or maxima."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from tersify.runtime.plan import Finish, Node, Plan, Pooled

SUMS = ("conv", "linear", "mean", "pointwise")


def fuse(plan: Plan) -> Plan:
    """The same function in fewer nodes."""
    plan = _without_trivial_views(plan)
    readers = plan.readers()
    nodes: dict[str, Node] = {}
    renamed: dict[str, str] = {}
    for node in plan.nodes:
        node = node.with_names(renamed)
        merged = _merged(node, nodes, readers)
        if merged is None:
            nodes[node.name] = node
        else:
            renamed[node.name] = merged.name
            nodes[merged.name] = merged
            readers[merged.name] = readers.get(node.name, 0)
    outputs = tuple(renamed.get(name, name) for name in plan.outputs)
    return _with_pools(replace(plan, nodes=tuple(nodes.values()), outputs=outputs).live())


def _merged(node: Node, nodes: dict[str, Node], readers: dict[str, int]) -> Node | None:
    """The producer of `node`'s operand with `node` folded in; None where that is not possible."""
    if node.kind != "pointwise":
        return None
    if node.residual is not None:
        return None if node.multiply else _with_residual(node, nodes, readers)
    producer = nodes.get(node.inputs[0])
    if producer is None or producer.kind not in SUMS or readers[producer.name] != 1 or producer.finish.activates:
        return None
    if producer.shape != node.shape:
        return None
    affine = node.finish.scale is not None or node.finish.shift is not None
    if producer.kind == "linear" and len(node.shape) > 1 and affine:
        return None  # behind a linear layer of a sequence the channels of a norm are not the features
    finish = _chained(producer, node.finish)
    return None if finish is None else replace(producer, finish=finish)


def _chained(producer: Node, then: Finish) -> Finish | None:
    first = producer.finish
    activated = replace(first, act=then.act, low=then.low, high=then.high)
    if then.scale is None and then.shift is None:
        return activated
    if producer.residual is None:
        scale, shift = _compose(first.scale, first.shift, then.scale, then.shift)
        return replace(activated, scale=scale, shift=shift)
    if producer.kind == "mean":
        return None
    scale2, shift2 = _compose(first.scale2, first.shift2, then.scale, then.shift)
    return replace(activated, scale2=scale2, shift2=shift2)


def _compose(
    scale: Tensor | None, shift: Tensor | None, then_scale: Tensor | None, then_shift: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """(x·scale + shift)·then_scale + then_shift as one affine map."""
    both = scale if then_scale is None else then_scale if scale is None else scale * then_scale
    moved = shift if then_scale is None or shift is None else shift * then_scale
    return both, moved if then_shift is None else then_shift if moved is None else moved + then_shift


def _with_residual(node: Node, nodes: dict[str, Node], readers: dict[str, int]) -> Node | None:
    """A convolution that ends in an addition takes the other summand along, if that exists by then."""
    assert node.residual is not None
    order = {name: i for i, name in enumerate(nodes)}
    pair = sorted((node.inputs[0], node.residual), key=lambda name: order.get(name, -1))
    other, last = pair
    producer = nodes.get(last)
    if producer is None or other == last or producer.kind != "conv" or readers[last] != 1:
        return None
    if producer.residual is not None or producer.finish.activates or producer.finish.scale2 is not None:
        return None
    return replace(producer, residual=other)


def _with_pools(plan: Plan) -> Plan:
    """A convolution that only a mean or a pool reads takes it along: its numbers need no memory."""
    readers = plan.readers()
    nodes = {node.name: node for node in plan.nodes}
    renamed: dict[str, str] = {}
    for node in plan.nodes:
        producer = nodes.get(node.inputs[0]) if _ends_a_convolution(node) else None
        if producer is None or producer.kind != "conv" or producer.pooled is not None or readers[producer.name] != 1:
            continue
        pooled = Pooled(before=producer.shape, finish=node.finish, window=node.options.get("window"))
        nodes[producer.name] = replace(producer, pooled=pooled, shape=node.shape)
        renamed[node.name] = producer.name
        del nodes[node.name]
    kept = tuple(node.with_names(renamed) for node in nodes.values())
    return replace(plan, nodes=kept, outputs=tuple(renamed.get(name, name) for name in plan.outputs))


def _ends_a_convolution(node: Node) -> bool:
    """A mean of all places, or the maxima of windows that lie side by side."""
    if node.kind != "pool" or not node.options["max"] or node.options["ceil"]:
        return node.kind == "mean"
    window = node.options["window"]
    return window[:2] == window[2:4] and window[4:] == (0, 0, 1, 1)


def _without_trivial_views(plan: Plan) -> Plan:
    """A view that changes nothing goes; one that only drops the places of a mean belongs to the mean."""
    shapes = {i.name: i.shape for i in plan.inputs}
    readers = plan.readers()
    nodes: dict[str, Node] = {}
    renamed: dict[str, str] = {}
    for node in plan.nodes:
        node = node.with_names(renamed)
        shapes[node.name] = node.shape
        source = node.inputs[0] if node.kind == "view" else ""
        if node.kind == "view" and shapes[source] == node.shape:
            renamed[node.name] = source
            readers[source] = readers.get(source, 0) + readers.get(node.name, 0) - 1
        elif (
            source in nodes
            and nodes[source].kind == "mean"
            and readers[source] == 1
            and node.shape[0] == nodes[source].shape[0]
        ):
            renamed[node.name] = source
            readers[source] = readers.get(node.name, 0)
            shapes[source] = node.shape
            nodes[source] = replace(nodes[source], shape=node.shape)
        else:
            nodes[node.name] = node
    outputs = tuple(renamed.get(name, name) for name in plan.outputs)
    return replace(plan, nodes=tuple(nodes.values()), outputs=outputs)
