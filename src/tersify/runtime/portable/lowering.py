"""A module and an example → the program that every machine can run, checked against the
module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tersify.checks import check_choice
from tersify.runtime.capture import Captured, capture
from tersify.runtime.check import FP32_TOLERANCE, ROUNDED_TOLERANCE, difference
from tersify.runtime.engine import Emitter, Kernels
from tersify.runtime.extension import extension
from tersify.runtime.inputs import (
    calibration_batches,
    check_inputs,
    example_arguments,
    explained,
    in_order,
)
from tersify.runtime.lower import GAINS_TOO_LITTLE
from tersify.runtime.ops import Conv, ConvKernel, Linear, LinearKernel
from tersify.runtime.plan import Node, Plan
from tersify.runtime.planner import Planner
from tersify.runtime.portable.biases import with_biases
from tersify.runtime.portable.effects import refuse_effects
from tersify.runtime.portable.free_batch import Free, with_free_batch
from tersify.runtime.portable.free_length import with_free_length
from tersify.runtime.portable.program import PRECISIONS, Port, Program
from tersify.runtime.portable.recording import Recording, Tape
from tersify.runtime.portable.replay import Replay
from tersify.runtime.portable.sources import Sources
from tersify.runtime.reference import run_reference
from tersify.runtime.weights import DENSE_FROM, WeightKind
from tersify.tensor import CompressedTensor

Tensors = Mapping[str, CompressedTensor | Tensor]


def lowered(
    model: nn.Module,
    example: Any,
    tensors: Tensors,
    *,
    precision: str = "fp32",
    calibration: Tensor | Iterable[Any] | None = None,
    other: Any = None,
) -> Program:
    """The program of a network whose weights are `tensors`.

    The batch is free where the network takes any; otherwise it is the example's. The
    length is free where `other` is a second example that differs in it. Kernels are
    chosen by the weights alone, not by the costs on this CPU. Precision "int8" takes
    the ranges of activations from the `calibration` batches.
    """
    check_choice("precision", precision, PRECISIONS)
    module = extension()
    if module is None:
        raise ValueError(
            "a plan is checked by the kernels before it is written, and they are not built here"
        )
    args = _by_position(example)
    batches = calibration_batches(calibration)
    if precision == "int8" and batches is None:
        raise ValueError(
            "an int8 plan needs the ranges of the activations; give calibration= batches of real inputs"
        )
    planner = Planner(model, precision, None)
    if precision == "int8":
        planner.calibrate([_observation(model, *batch) for batch in batches or []])
    maker = _Maker(model, planner, module, Sources(tensors), precision)
    exact = maker.program(args)

    def fits(program: Program, shown: Sequence[Tensor]) -> bool:
        try:
            _check(program, tensors, module, maker, shown)
        except ValueError:
            return False
        return True

    free = (
        with_free_batch(maker.program, args)
        if other is None
        else with_free_length(maker.program, args, _by_position(other), fits)
    )
    if free is None:
        free = Free(exact)
    try:
        for shown in (args, *free.shown):
            _check(free.program, tensors, module, maker, shown)
    except ValueError:
        if other is not None or free.program is exact:
            raise
        _check(exact, tensors, module, maker, args)
        return exact  # what one item makes may be no case of what several make
    return free.program


def _by_position(example: Any) -> tuple[Tensor, ...]:
    args, kwargs = example_arguments(example)
    if kwargs or not all(isinstance(x, Tensor) for x in args):
        raise ValueError(
            "a plan takes tensors by position alone; give a tensor or a tuple of them as the example"
        )
    return tuple(x.detach() for x in args)  # one given twice fills two places


@dataclass(frozen=True, eq=False)
class _Maker:
    model: nn.Module
    planner: Planner
    module: Any
    sources: Sources
    precision: str

    def captured(self, args: Sequence[Tensor]) -> Captured:
        try:
            return capture(self.model, tuple(args), {})
        except Exception as error:
            # anybody's forward: what it raises is not known here
            raise explained(self.model, args, error) from error

    def plan(self, args: Sequence[Tensor], found: Captured | None = None) -> Plan:
        graph = (self.captured(args) if found is None else found).graph
        refuse_effects(graph)
        plan = _for_every_machine(self.planner.plan(with_biases(graph)))
        in_torch = [node for node in plan.nodes if node.in_torch]
        # What has a kernel stays in torch only beside calls that have none.
        in_torch.sort(key=lambda node: node.reason == GAINS_TOO_LITTLE)
        if in_torch:
            node = in_torch[0]
            raise ValueError(
                f"{node.name!r} would be a call of torch ({node.reason}), so the network gets no plan"
            )
        for name in plan.outputs:
            if name in plan.constants:
                raise ValueError(
                    f"the output {name!r} does not depend on the inputs, so the network gets no plan"
                )
        return plan

    def program(self, args: Sequence[Tensor]) -> Program:
        """For exactly these sizes."""
        plan = self.plan(args)
        tape = Tape(self.sources)
        emitter = Emitter(Kernels(Recording(self.module, tape), 1), plan.quants)  # type: ignore[arg-type]
        for name, value in plan.inputs.items():
            emitter.add_input(name, value)
        for node in plan.nodes:
            emitter.add(node)
        emitter.outputs(plan.outputs)
        values = plan.values()
        return Program(
            precision=self.precision,
            batch=args[0].shape[0] if args[0].ndim else 1,
            inputs=tuple(_port(name, plan) for name in plan.inputs),
            outputs=tuple(
                Port(name=name, shape=tuple(values[name].shape))
                for name in plan.outputs
            ),
            weights=tuple(tape.weights),
            calls=tuple(tape.calls),
            numbers=tape.numbers,
        )


def _observation(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, list[Tensor]]:
    return with_biases(capture(model, args, kwargs).graph), [
        in_order(x) for x in check_inputs(args, kwargs)
    ]


def _port(name: str, plan: Plan) -> Port:
    value = plan.inputs[name]
    if value.dtype not in (torch.float32, torch.int64):
        raise ValueError(
            f"a plan takes inputs of float32 or int64, {name!r} is {value.dtype}"
        )
    return Port(
        name=name,
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
    )


def _for_every_machine(plan: Plan) -> Plan:
    """Products with every weight where lists of some would be long, whatever the CPU."""
    return replace(plan, nodes=tuple(map(_dense_where_dense, plan.nodes)))


def _dense_where_dense(node: Node) -> Node:
    op = node.op
    plain = (
        isinstance(op, (Conv, Linear))
        and op.weight.kind is WeightKind.FLOAT
        and op.weight.density >= DENSE_FROM
    )
    if not plain:
        return node
    if isinstance(op, Conv) and op.kernel is ConvKernel.LISTS_F32 and op.groups == 1:
        return replace(node, op=replace(op, kernel=ConvKernel.DENSE_F32))
    if isinstance(op, Linear) and op.kernel is LinearKernel.F32:
        return replace(node, op=replace(op, kernel=LinearKernel.DENSE_F32))
    return node


def _check(
    program: Program,
    tensors: Tensors,
    module: Any,
    maker: _Maker,
    args: Sequence[Tensor],
) -> None:
    """What the program makes of the example, against the module or, where activations
    are rounded, the reference.
    """
    captured = maker.captured(args)
    given = [in_order(x.detach()) for x in args]
    made = Replay(program, tensors, module=module).run(given)
    if program.precision == "fp32":
        wanted: Sequence[Tensor] = [
            captured.made[name] for name in captured.graph.results
        ]
        limit = FP32_TOLERANCE
    else:
        with torch.no_grad():
            wanted = run_reference(maker.plan(args, captured), given)
        limit = ROUNDED_TOLERANCE
    if [x.shape for x in made] != [x.shape for x in wanted]:
        sizes = ["×".join(map(str, x.shape)) for x in (*made, *wanted)]
        raise ValueError(f"the plan makes other sizes than the module: {sizes}")
    apart = max(difference(a, b) for a, b in zip(made, wanted, strict=True))
    if apart > limit:
        raise ValueError(
            f"the plan differs from {type(maker.model).__name__} by {apart:.1e} of its largest output, {limit:.0e} is "
            "allowed, so the network gets none"
        )
