"""A captured graph → a plan, call for call; what has no kernel stays a torch call."""

from __future__ import annotations

from collections.abc import Mapping

from tersify.runtime.capture.values import Call, Graph
from tersify.runtime.ops import LOWERINGS, CannotLower, Context, Op, TorchCall
from tersify.runtime.ops.torch_call import FREE_OF_STRIDES
from tersify.runtime.plan import Node, Plan
from tersify.runtime.weights import Weight
from tersify.tensor import CompressedTensor

GAINS_TOO_LITTLE = "among torch calls its kernel gains less than it takes to call"


def lower(
    graph: Graph,
    *,
    classified: dict[str, Weight] | None = None,
    origins: Mapping[str, CompressedTensor] | None = None,
    refused: frozenset[str] = frozenset(),
    lonely: frozenset[str] = frozenset(),
) -> Plan:
    """`refused` and `lonely` name values that torch computes: their kernels disagreed
    with it, or gain too little.

    `classified` remembers weights from plan to plan.
    """
    context = Context(graph, {} if classified is None else classified, origins or {})
    nodes = [_lowered(call, context, refused, lonely) for call in graph.calls]
    # State comes behind the caller's inputs: it is read anew at every call, and the
    # runs pass both in this order.
    inputs = {name: graph.values[name] for name in (*graph.inputs, *graph.state)}
    plan = Plan(
        inputs=inputs,
        nodes=tuple(nodes),
        outputs=graph.results,
        constants=graph.constants,
    )
    return plan.live()


def _lowered(
    call: Call, context: Context, refused: frozenset[str], lonely: frozenset[str]
) -> Node:
    reason = "no kernel for it"
    lowering = LOWERINGS.get(call.target)
    if refused.intersection(call.results):
        reason = "its kernel disagreed with torch"
    elif lonely.intersection(call.results):
        reason = GAINS_TOO_LITTLE
    elif lowering is not None:
        try:
            op, inputs = lowering(call, context)
            return _node(call, context.graph, op, inputs, "")
        except CannotLower as problem:
            reason = str(problem)
    # An engine's output has other strides than torch's would have, and `view` fails on
    # those.
    target = FREE_OF_STRIDES.get(call.target, call.target)
    return _node(
        call,
        context.graph,
        TorchCall(target=target, args=call.args, kwargs=call.kwargs),
        call.reads,
        reason,
    )


def _node(
    call: Call, graph: Graph, op: Op, inputs: tuple[str, ...], reason: str
) -> Node:
    return Node(
        name=call.results[0],
        op=op,
        inputs=inputs,
        value=graph.values[call.results[0]],
        covers=frozenset(call.results),
        more={name: graph.values[name] for name in call.results[1:]},
        reason=reason,
    )
