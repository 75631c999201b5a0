"""The self-check of a compiled network: what its kernels make, against what torch makes
of the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tersify.modes import eval_mode
from tersify.runtime.capture import Captured, Graph, Ref, resolve
from tersify.runtime.capture.given import Given, copied_in_order
from tersify.runtime.engine import Kernels
from tersify.runtime.nested import leaves, tensors
from tersify.runtime.network import Network
from tersify.runtime.ops import ConvKernel, Levels
from tersify.runtime.passes.quantize import ROUNDED
from tersify.runtime.plan import Node, Plan
from tersify.runtime.reference import results_of, run_node, run_reference

FP32_TOLERANCE = 2e-5  # of the largest number of an output
UNWATCHED_TOLERANCE = 1e-3  # short ways of torch's own add in another order
MOST_LOST = 0.5  # of an output by 8-bit activations: more is no network any longer
# kernels that round activations may end a step apart from their reference
ROUNDED_TOLERANCE = 5e-2
ONE_KERNEL_TOLERANCE = 5e-3  # of one of them that reads what its reference reads
ROUNDING_KERNELS = ROUNDED | {ConvKernel.LISTS_F16}
MOST_HALVES = 1e-3  # of rounded numbers that may be halves but for the last bits


def difference(made: Tensor, wanted: Tensor) -> float:
    """The largest difference as a fraction of the largest number; infinite where the
    shapes, the types, or the infinities and NaN differ.
    """
    if made.shape != wanted.shape or made.dtype != wanted.dtype:
        return float("inf")
    # A result may be the very tensor that was given, such as a constant.
    if not wanted.numel() or made is wanted:
        return 0.0
    if wanted.is_complex():
        made, wanted = (torch.view_as_real(x.resolve_conj()) for x in (made, wanted))
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(made, wanted) else float("inf")
    finite = wanted.isfinite()
    if not torch.equal(made.isfinite(), finite):
        return float("inf")
    # What is no number must be the same: an infinity of the same sign, or NaN.
    if not torch.equal(made[~finite].nan_to_num(), wanted[~finite].nan_to_num()):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    # The scale is the largest output, not each single one: an output near zero is the
    # rest of large summands that cancel. 1e-30 keeps 0/0 away.
    apart = (made[finite].double() - wanted[finite].double()).abs().max()
    top = wanted[finite].double().abs().max().clamp(min=1e-30)
    return float(apart / top)


def largest_difference(
    network: Network, inputs: Sequence[Tensor], captured: Captured
) -> float:
    """Between what the network makes and what the module itself made."""
    made = zip(captured.graph.results, network.run(inputs), strict=True)
    return max(
        (difference(tensor, captured.made[name]) for name, tensor in made), default=0.0
    )


def differs_when_nobody_looks(
    model: nn.Module, args: tuple[Any, ...], kwargs: Any, captured: Captured
) -> float:
    """The largest difference between the module's outputs in the capture and outside
    it: torch takes short cuts where nothing records its operations.
    """
    graph = captured.graph
    if graph.random:
        return 0.0
    # Copies, because the module may write to its inputs.
    given = Given(model, args, kwargs, copied_in_order)
    # A forward that changes buffers must leave no trace of this extra call.
    before = [(tensor, tensor.detach().clone()) for tensor in graph.state.values()]
    try:
        with torch.no_grad(), eval_mode(model):
            made = [
                tensor.detach().clone()
                for tensor in tensors(model(*given.args, **given.kwargs))
            ]
    finally:
        with torch.no_grad():
            for tensor, old in before:
                # `.data` also writes to tensors that require gradients.
                tensor.data.copy_(old)
    wanted = [captured.made[name] for name in _names(graph.outputs)]
    return max(
        (difference(a, b) for a, b in zip(wanted, made, strict=True)), default=0.0
    )


def _names(outputs: Any) -> list[str]:
    return [leaf.name for leaf in leaves(outputs) if type(leaf) is Ref]


def differs_from_reference(network: Network, inputs: Sequence[Tensor]) -> float:
    """For plans that round: kernels against the reference of the same plan."""
    with torch.no_grad():
        wanted = run_reference(network.plan, inputs)
    return max(
        (difference(a, b) for a, b in zip(network.run(inputs), wanted, strict=True)),
        default=0.0,
    )


def lost_by_rounding(
    network: Network, inputs: Sequence[Tensor], captured: Captured
) -> float:
    """How far the outputs of a plan that rounds lie from the module's: the distance as
    a fraction of their length.
    """
    lost = 0.0
    for name, made in zip(captured.graph.results, network.run(inputs), strict=True):
        wanted = captured.made[name]
        # Euclidean lengths: rounding moves every output a little, and the largest single
        # error would say nothing about the whole.
        if wanted.is_floating_point() and wanted.isfinite().all():
            apart, length = (made - wanted).double().norm(), wanted.double().norm()
            lost = max(lost, float(apart / length.clamp(min=1e-30)))
    return lost


def graph_values(graph: Graph, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """Every value of a graph, computed by torch call by call."""
    values: dict[str, Any] = {
        **graph.constants,
        **dict(zip((*graph.inputs, *graph.state), inputs, strict=True)),
    }
    with torch.no_grad():
        for call in graph.calls:
            made = call.target(
                *resolve(call.args, values), **resolve(call.kwargs, values)
            )
            # A call may return more than the capture named, such as None entries.
            values.update(zip(call.results, results_of(made), strict=False))
    return values


def first_wrong_rounding(
    network: Network, kernels: Kernels, inputs: Sequence[Tensor]
) -> tuple[Node, float] | None:
    """The first node of a plan that rounds whose kernel does not make what the reference
    makes of the very numbers that the kernel read.

    Last bits that differ fall on other sides of a rounding, and a deep network amplifies
    that: between random words the outputs of a right transformer end up to half their
    length apart. Node by node nothing is amplified.
    """
    plan = network.plan
    kernel_nodes = [node for node in plan.nodes if not node.in_torch]
    read = [name for node in kernel_nodes for name in node.inputs]
    names = tuple(dict.fromkeys((*read, *(node.name for node in kernel_nodes))))
    shown = Network(replace(plan, outputs=(*names, *plan.outputs)), kernels)
    made = shown.run(inputs)
    values = dict(zip(names, made, strict=False))
    for node in kernel_nodes:
        wanted = run_node(plan, node, values)[node.name]
        apart = difference(values[node.name], wanted)
        if not _rounded_alike(values[node.name], wanted, node, plan):
            return node, apart
    # What is shown must be what runs: it hands values over in the same way.
    outputs = zip(made[len(names) :], network.run(inputs), strict=True)
    apart = max((difference(*pair) for pair in outputs), default=0.0)
    return None if apart <= FP32_TOLERANCE else (plan.nodes[-1], apart)


def _rounded_alike(made: Tensor, wanted: Tensor, node: Node, plan: Plan) -> bool:
    apart, kernel = difference(made, wanted), getattr(node.op, "kernel", None)
    if apart <= FP32_TOLERANCE:
        return True
    steps = plan.quants.get(node.name)
    # Lists write whole steps; a trained mean behind them is of floats.
    if kernel is ConvKernel.LISTS_I8 and steps is not None:
        return _on_other_sides(made, wanted, steps.scale)
    return kernel in ROUNDING_KERNELS and apart <= ONE_KERNEL_TOLERANCE


def rounds_in_between(plan: Plan) -> bool:
    """Whether the module itself rounds what its layers read. A number that lies between
    two levels to the last bit may then fall on either side, in torch as well as here.
    """
    return any(
        isinstance(node.op, Levels) or getattr(node.op, "levels", None) is not None
        for node in plan.nodes
    )


def first_wrong_node(
    plan: Plan, kernels: Kernels, graph: Graph, inputs: Sequence[Tensor]
) -> tuple[Node, float] | None:
    """The first node with a kernel that disagrees with torch; each node's last covered
    value is what it makes.
    """
    if rounds_in_between(plan):
        return _wrong_alone(plan, kernels, graph, inputs)
    # Every value with a kernel becomes an output, so one run shows all of them.
    names = tuple(node.name for node in plan.nodes if not node.in_torch)
    network = Network(replace(plan, outputs=names), kernels)
    made = dict(zip(names, network.run(inputs), strict=True))
    wanted = graph_values(graph, inputs)
    # nodes make first results alone
    order = {call.results[0]: i for i, call in enumerate(graph.calls)}
    for node in plan.nodes:
        if node.in_torch:
            continue
        last = _last_call(node, order)
        if last is None:
            continue
        apart = difference(made[node.name].reshape(wanted[last].shape), wanted[last])
        if apart > FP32_TOLERANCE:
            return node, apart
    return None


def _last_call(node: Node, order: Mapping[str, int]) -> str | None:
    """A fused node stands for several calls, and its value is that of the last one. What
    a rewritten graph makes on the way is none of the module's values.
    """
    if node.name not in order:
        return None
    return max(node.covers & order.keys(), key=order.__getitem__)


def _wrong_alone(
    plan: Plan, kernels: Kernels, graph: Graph, inputs: Sequence[Tensor]
) -> tuple[Node, float] | None:
    """The first node that disagrees with torch when it reads what torch made: what
    fell on the other side of a rounding before does not count.
    """
    torch_values = graph_values(graph, inputs)
    order = {call.results[0]: i for i, call in enumerate(graph.calls)}
    values, shapes = dict(torch_values), plan.values()
    for node in plan.nodes:
        last = _last_call(node, order)
        if last is None:
            values.update(run_node(plan, node, values))
            continue
        values[node.name] = torch_values[last].reshape(node.shape)
        if node.in_torch:
            continue
        names = dict.fromkeys(node.inputs)
        alone = replace(
            plan,
            inputs={name: shapes[name] for name in names},
            nodes=(node,),
            outputs=(node.name,),
        )
        (made,) = Network(alone, kernels).run([values[name] for name in names])
        apart = difference(made, values[node.name])
        steps = plan.quants.get(node.name)
        if apart > FP32_TOLERANCE and not (
            steps is not None and _on_other_sides(made, values[node.name], steps.scale)
        ):
            return node, apart
    return None


def _on_other_sides(made: Tensor, wanted: Tensor, step: float) -> bool:
    """Whether a few whole numbers differ by one: they were halves but for the last bits."""
    apart = ((made - wanted) / step).abs()
    return (
        bool(apart.max() <= 1.01)
        and float((apart > 0.5).double().mean()) <= MOST_HALVES
    )
