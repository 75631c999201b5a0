"""Fold what follows a sum into the sum's epilogue: norms, residual additions,
activations, a mean or maxima.
"""

from __future__ import annotations

from dataclasses import replace

from tersify.runtime.ops import (
    Attention,
    Conv,
    Elementwise,
    GlobalAverage,
    Linear,
    MaxPool,
    Move,
    Pooling,
    View,
)
from tersify.runtime.plan import Node, Plan

Sum = (Conv, Linear, GlobalAverage, Elementwise)


def fuse(plan: Plan) -> Plan:
    """The same function in fewer nodes."""
    return _with_pools(
        _with_epilogues(
            _with_heads_in_place(_with_joined_moves(_without_trivial_views(plan)))
        )
    )


class _Rewriter:
    """Nodes in order, of which some take their followers in."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.nodes: dict[str, Node] = {}
        self.renamed: dict[str, str] = {}
        self.readers = plan.readers()

    def has_one_reader(self, name: str) -> bool:
        return self.readers.get(name, 0) == 1

    def absorb(self, producer: Node, follower: Node) -> None:
        """`producer` now makes what `follower` made: its readers read the producer."""
        # `covers` names every call of the captured graph that a node stands for; the
        # self-check compares a node with the last of them.
        self.nodes[producer.name] = replace(
            producer, covers=producer.covers | follower.covers
        )
        self.renamed[follower.name] = producer.name
        # The only reader was the follower, so now the follower's readers count.
        self.readers[producer.name] = self.readers.get(follower.name, 0)

    def done(self) -> Plan:
        outputs = tuple(self.renamed.get(name, name) for name in self.plan.outputs)
        return replace(
            self.plan, nodes=tuple(self.nodes.values()), outputs=outputs
        ).live()


def _with_epilogues(plan: Plan) -> Plan:
    rewriter = _Rewriter(plan)
    for node in plan.nodes:
        node = node.reading(rewriter.renamed)
        if not (
            isinstance(node.op, Elementwise) and _absorbed(node, node.op, rewriter)
        ):
            rewriter.nodes[node.name] = node
    return rewriter.done()


def _absorbed(node: Node, op: Elementwise, rewriter: _Rewriter) -> bool:
    """Whether the producer of an operand took the node in."""
    # Only a plain sum of two values of one shape can be a residual. A scale would
    # belong to one operand alone.
    if len(node.inputs) > 1:
        plain = not op.multiply and not op.narrow and not op.epilogue.is_affine
        return plain and _took_residual(node, op, rewriter)
    producer = rewriter.nodes.get(node.inputs[0])
    views: list[Node] = []
    # An activation may stand behind a reshape of the sum it belongs to.
    while (
        producer is not None
        and isinstance(producer.op, View)
        and op.epilogue.is_uniform
    ):
        if not rewriter.has_one_reader(producer.name):
            return False
        views.append(producer)
        producer = rewriter.nodes.get(producer.inputs[0])
    # The sum must be read by this node alone: another reader needs the value from
    # before the epilogue.
    if (
        producer is None
        or not isinstance(producer.op, Sum)
        or not rewriter.has_one_reader(producer.name)
    ):
        return False
    extended = _extended(producer, op)
    if extended is None:
        return False
    if not views:
        rewriter.absorb(extended, node)
        return True
    # An epilogue that is the same for all channels commutes with views: the last view
    # then is the node.
    rewriter.nodes[extended.name] = replace(
        extended, covers=extended.covers | node.covers
    )
    # `views` runs from the node back to the sum, so its first entry is the last view.
    rewriter.absorb(views[0], node)
    return True


def _extended(producer: Node, follower: Elementwise) -> Node | None:
    op = producer.op
    assert isinstance(op, Sum)
    residual = len(producer.inputs) > 1
    # The activation is the last step of an epilogue, so nothing fits behind it.
    if op.epilogue.activates or (
        isinstance(op, Elementwise) and residual and follower.epilogue.is_affine
    ):
        return None
    if (
        isinstance(op, Linear)
        and len(producer.shape) != 2
        and not follower.epilogue.is_uniform
    ):
        # behind a linear layer of a sequence the channels of a norm are not the
        # features
        return None
    return replace(
        producer,
        op=replace(op, epilogue=op.epilogue.then(follower.epilogue, residual=residual)),
    )


def _took_residual(node: Node, op: Elementwise, rewriter: _Rewriter) -> bool:
    """A convolution that ends in an addition takes the other summand along, if that
    exists by then.
    """
    # An input of the plan is no node: it exists from the start, hence -1. The later of
    # the two summands takes the earlier, which has been computed by then.
    order = {name: i for i, name in enumerate(rewriter.nodes)}
    other, last = sorted(node.inputs, key=lambda name: order.get(name, -1))
    producer = rewriter.nodes.get(last)
    if (
        producer is None
        # x + x: the convolution would need its own result as its residual.
        or other == last
        or not isinstance(producer.op, Conv)
        or not rewriter.has_one_reader(last)
    ):
        return False
    # One residual per convolution, added before any activation. A second affine map
    # would have to come behind the residual of this addition.
    epilogue = producer.op.epilogue
    if (
        len(producer.inputs) > 1
        or epilogue.activates
        or epilogue.is_affine_after_residual
    ):
        return False
    added = replace(
        epilogue,
        activation=op.epilogue.activation,
        low=op.epilogue.low,
        high=op.epilogue.high,
    )
    with_residual = replace(
        producer,
        inputs=(*producer.inputs, other),
        op=replace(producer.op, epilogue=added),
    )
    rewriter.absorb(with_residual, node)
    return True


def _with_joined_moves(plan: Plan) -> Plan:
    """Moves of moves become one; what nobody reads then goes."""
    nodes: dict[str, Node] = {}
    for node in plan.nodes:
        first = nodes.get(node.inputs[0]) if isinstance(node.op, Move) else None
        if (
            first is not None
            and isinstance(node.op, Move)
            and isinstance(first.op, Move)
        ):
            joined = node.op.after(first.op)
            # The first move stays in the plan if others read it; `live` drops it
            # otherwise.
            if joined is not None:
                node = replace(
                    node,
                    op=joined,
                    inputs=first.inputs,
                    covers=node.covers | first.covers,
                )
        nodes[node.name] = node
    return replace(plan, nodes=tuple(nodes.values())).live()


def _with_heads_in_place(plan: Plan) -> Plan:
    """Attention reads and writes heads where they lie: the permutations around it go."""
    rewriter = _Rewriter(plan)
    for node in plan.nodes:
        node = node.reading(rewriter.renamed)
        attention = rewriter.nodes.get(node.inputs[0]) if _swaps_heads(node) else None
        if isinstance(node.op, Attention):
            first, inputs, covers = (
                list(node.op.tokens_first),
                list(node.inputs),
                node.covers,
            )
            # Queries, keys and values, each with its own permutation or without one.
            for i in range(3):
                source = rewriter.nodes.get(inputs[i])
                if source is not None and _swaps_heads(source) and not first[i]:
                    first[i], inputs[i], covers = (
                        True,
                        source.inputs[0],
                        covers | source.covers,
                    )
            op = replace(node.op, tokens_first=(first[0], first[1], first[2], first[3]))
            rewriter.nodes[node.name] = replace(
                node, op=op, inputs=tuple(inputs), covers=covers
            )
        elif (
            attention is not None
            and isinstance(attention.op, Attention)
            # Entry 3 is the layout of the result: tokens before heads.
            and not attention.op.tokens_first[3]
            and rewriter.has_one_reader(attention.name)
        ):
            op = replace(
                attention.op, tokens_first=(*attention.op.tokens_first[:3], True)
            )
            rewriter.absorb(replace(attention, op=op, value=node.value), node)
        else:
            rewriter.nodes[node.name] = node
    return rewriter.done()


def _swaps_heads(node: Node) -> bool:
    return isinstance(node.op, Move) and node.op.permutation == (0, 2, 1, 3)


def _with_pools(plan: Plan) -> Plan:
    """A convolution that only a mean or a pool reads takes it along: its numbers need
    no memory.
    """
    rewriter = _Rewriter(plan)
    for node in plan.nodes:
        node = node.reading(rewriter.renamed)
        pooling = _foldable(node)
        producer = rewriter.nodes.get(node.inputs[0]) if pooling is not None else None
        if (
            producer is None
            or not isinstance(producer.op, Conv)
            or producer.op.pooling is not None
            or not rewriter.has_one_reader(producer.name)
        ):
            rewriter.nodes[node.name] = node
        else:
            assert pooling is not None
            # `before` keeps the shape of the convolution's own result, which the kernel
            # still needs to walk its positions.
            folded = replace(
                producer.op, pooling=replace(pooling, before=producer.shape)
            )
            rewriter.absorb(replace(producer, op=folded, value=node.value), node)
    return rewriter.done()


def _foldable(node: Node) -> Pooling | None:
    """A global average, or the maxima of windows that lie side by side."""
    if isinstance(node.op, GlobalAverage):
        return Pooling(before=(), epilogue=node.op.epilogue)
    # Windows that overlap read the same sums several times, so these must be stored.
    # Side by side each sum belongs to one window.
    if (
        isinstance(node.op, MaxPool)
        and not node.op.ceil
        and node.op.window.is_side_by_side
    ):
        return Pooling(before=(), window=node.op.window)
    return None


def _without_trivial_views(plan: Plan) -> Plan:
    """A view that changes nothing goes; one that only drops the positions of a mean
    belongs to the mean.

    A copy of what torch made stays: it may be there to put the numbers in order.
    """
    rewriter = _Rewriter(plan)
    shapes = {name: value.shape for name, value in plan.values().items()}
    for node in plan.nodes:
        node = node.reading(rewriter.renamed)
        source = (
            rewriter.nodes.get(node.inputs[0]) if isinstance(node.op, View) else None
        )
        if (
            source is not None
            and isinstance(source.op, GlobalAverage)
            and _drops_positions(node, source, rewriter)
        ):
            rewriter.absorb(replace(source, value=node.value), node)
            shapes[source.name] = node.shape
        elif (
            source is not None
            and not source.in_torch
            and shapes[source.name] == node.shape
        ):
            # The view's own read of its source disappears, its readers move there:
            # hence the −1. A wrong count would let another pass absorb a value that is
            # still read.
            name = node.inputs[0]
            rewriter.renamed[node.name] = name
            rewriter.readers[name] = (
                rewriter.readers.get(name, 0) + rewriter.readers.get(node.name, 0) - 1
            )
        else:
            rewriter.nodes[node.name] = node
    return rewriter.done()


def _drops_positions(view: Node, mean: Node, rewriter: _Rewriter) -> bool:
    return (
        len(view.shape) >= 2
        and view.shape[:2] == mean.shape[:2]
        and rewriter.has_one_reader(mean.name)
    )
