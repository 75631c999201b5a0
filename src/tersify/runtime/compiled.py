"""`compile`: a plain module → a module that runs its plan."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any, SupportsIndex

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as torch_module

from tersify.checks import check_choice, check_whole
from tersify.cpus import usable_cpus
from tersify.modes import eval_mode
from tersify.runtime.capture import capture
from tersify.runtime.choose_kernels import choose
from tersify.runtime.engine import EngineBuilder, extension
from tersify.runtime.fuse import fuse
from tersify.runtime.halves import serves_halves, with_halves
from tersify.runtime.inputs import calibration_batches, check_inputs, example_tensors
from tersify.runtime.kernel_costs import costs_of_this_cpu
from tersify.runtime.op import Segment, Stage, call, watched
from tersify.runtime.op_times import OpTime, profile
from tersify.runtime.plan import Node, Plan
from tersify.runtime.quantize import quantize, with_dense_convolutions
from tersify.runtime.reference import run_node, run_reference

_HOOKS_OF_ALL_MODULES = (
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)
PRECISIONS = ("fp32", "fp16", "int8", "auto")
MAX_THREADS = 1024


class CompiledModule(nn.Module):
    """Same arguments and results as the module it was compiled from, eval mode only, no gradients."""

    plan: Plan

    def __init__(self, plan: Plan, out_spec: Any, stages: Sequence[Stage] | None) -> None:
        super().__init__()
        self.plan = plan
        self._out_spec = out_spec
        self._one_output = out_spec.is_leaf()
        self._stages = stages
        self._one_segment = _only_segment(plan, stages or ())
        self._again: Any = None  # runs inputs like the last
        self._again_shapes: tuple[torch.Size, ...] = ()
        self.eval()

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """What torch does around `forward` takes as long as a small network: left out where nobody stands around it."""
        again = None if is_dynamo_compiling() or named else self._again
        made = None if again is None else again(inputs, self.__dict__)
        if made is None:
            return super().__call__(*inputs, **named)
        return made if self._one_output else self._like_the_module(made)

    def forward(self, *inputs: Tensor) -> Any:
        check_inputs(self.plan, inputs)
        if self._stages is None:
            with torch.no_grad():
                return self._like_the_module(run_reference(self.plan, inputs))
        return self._like_the_module(self._run_stages(self._stages, inputs))

    def _like_the_module(self, outputs: Sequence[Tensor]) -> Any:
        return outputs[0] if self._one_output else pytree.tree_unflatten(list(outputs), self._out_spec)

    def weight_bytes(self) -> int:
        """Bytes of the packed weights that the kernels read."""
        segments = [s.segment for s in self._stages or () if s.segment is not None]
        return sum(segment.engine.weight_bytes for segment in segments)

    def profile(self, *inputs: Tensor, repeats: int = 20) -> list[OpTime]:
        """How long every operation of the plan takes with these inputs: the median of the repeats."""
        check_inputs(self.plan, inputs)
        return profile(self.plan, self._stages, inputs, repeats)

    def _run_stages(self, stages: Sequence[Stage], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self._one_segment is not None:
            outputs = tuple(call(self._one_segment, inputs))
            shapes = tuple(x.shape for x in inputs)
            if not watched() and (self._again is None or self._again_shapes != shapes):
                self._again_shapes = shapes
                self._again = self._one_segment.again(shapes, _HOOKS_OF_ALL_MODULES, self._one_output)
            return outputs
        values: dict[str, Any] = dict(zip((i.name for i in self.plan.inputs), inputs, strict=True))
        if any(stage.segment is None for stage in stages):
            values |= self.plan.constants
        for stage in stages:
            if stage.segment is None:
                with torch.no_grad():
                    for node in stage.nodes:
                        values[node.name] = run_node(node, values, torch.float32)
            else:
                given = call(stage.segment, [values[name] for name in stage.inputs])
                values.update(zip(stage.outputs, given, strict=True))
        return tuple(values[name] for name in self.plan.outputs)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        if self._stages is None:
            return super().__reduce_ex__(protocol)
        raise TypeError(
            "a compiled network is packed for this CPU and can be neither copied nor pickled; save the network it was "
            "compiled from, and compile that again"
        )


def _only_segment(plan: Plan, stages: Sequence[Stage]) -> Segment | None:
    """The segment that is the whole network: no need to keep values by name then."""
    names = tuple(i.name for i in plan.inputs)
    whole = len(stages) == 1 and (stages[0].inputs, stages[0].outputs) == (names, plan.outputs)
    return stages[0].segment if whole else None


def compile(
    model: nn.Module,
    example: Tensor | tuple[Tensor, ...],
    *,
    precision: str = "fp32",
    threads: int | None = None,
    calibration: Tensor | Iterable[Tensor | tuple[Tensor, ...]] | None = None,
) -> CompiledModule:
    """Capture `model` in eval mode, fuse it, and pack its weights for the kernels of this CPU.

    precision "fp32" is exact up to the order of sums, and the same plan on every machine.
    "int8" runs ternary convolutions, and linear layers of up to 16 levels, on 8-bit activations; the ranges of the
    convolutions come from the `calibration` batches, or from the example. "auto" chooses for every layer the kernel
    that costs least by a measurement on this CPU, which is cached on disk: lists of non-zeros, a dense product in
    torch, or, where `calibration` batches are given, 8-bit activations. "fp16" runs convolutions on 16-bit floats
    where the CPU adds them (AVX512-FP16); elsewhere it warns and stays fp32, unless TERSIFY_ISA names an instruction
    set, whose kernels then emulate the arithmetic, slowly.
    `threads` defaults to what torch uses, or to the processors that this process may run on, if they are fewer.
    """
    check_choice("precision", precision, PRECISIONS)
    if threads is not None:
        check_whole("threads", threads, low=1, high=MAX_THREADS)
    if not isinstance(model, nn.Module):
        raise ValueError(f"compile takes a torch.nn.Module, got a {type(model).__name__}")
    given = example_tensors(example)
    exported = isinstance(model, torch.fx.GraphModule)  # its mode is fixed
    with nullcontext() if exported else eval_mode(model), torch.no_grad():
        captured, out_spec = capture(model, given)
    plan = fuse(captured)
    batches = calibration_batches(plan, calibration)
    if precision == "int8":
        plan = quantize(with_dense_convolutions(plan), batches or [given])
    elif precision == "fp16":
        if (kernels := extension()) is not None and serves_halves(kernels):
            plan = with_halves(plan)
        else:
            warnings.warn("this CPU has no AVX512-FP16; compiling in fp32", RuntimeWarning, stacklevel=2)
    elif precision == "auto" and (kernels := extension()) is not None:
        allowed = batches is not None
        plan, narrow = choose(plan, len(given[0]), costs_of_this_cpu(kernels), int8=allowed)
        plan = quantize(plan, batches or (), only=narrow)
    return build(plan, out_spec, threads=threads)


def build(plan: Plan, out_spec: Any, *, threads: int | None = None) -> CompiledModule:
    """Pack a plan for the kernels of this CPU; without them it runs in plain torch."""
    module = extension()
    if module is None:
        return CompiledModule(plan, out_spec, None)
    count = threads or min(torch.get_num_threads(), usable_cpus())
    return CompiledModule(plan, out_spec, _stages(plan, lambda: EngineBuilder(module, count, plan.quants)))


def _stages(plan: Plan, builder: Any) -> list[Stage]:
    runs: list[list[Node]] = []
    for node in plan.nodes:
        if runs and not node.in_torch and not runs[-1][-1].in_torch:
            runs[-1].append(node)
        else:
            runs.append([node])
    shapes = {i.name: i.shape for i in plan.inputs} | {n.name: n.shape for n in plan.nodes}
    stages = []
    for position, run in enumerate(runs):
        later = set(plan.outputs) | {name for rest in runs[position + 1 :] for n in rest for name in n.reads}
        made = {node.name for node in run}
        inputs = tuple(dict.fromkeys(name for node in run for name in node.reads if name not in made))
        outputs = tuple(node.name for node in run if node.name in later)
        segment = None if run[0].in_torch else _segment(builder(), run, inputs, outputs, shapes)
        stages.append(Stage(tuple(run), segment, inputs, outputs))
    return stages


def _segment(
    builder: EngineBuilder,
    run: Sequence[Node],
    inputs: Sequence[str],
    outputs: Sequence[str],
    shapes: dict[str, tuple[int, ...]],
) -> Segment:
    row_counts: dict[int, int] = {}
    for node in run:
        if node.kind == "embedding":
            place = inputs.index(node.inputs[0])
            row_counts[place] = min(node.options["rows"], row_counts.get(place, node.options["rows"]))
    for place, name in enumerate(inputs):
        builder.input(name, shapes[name], numbers=place in row_counts)
    for node in run:
        builder.add(node)
    builder.outputs(outputs)
    sizes = tuple(math.prod(shapes[name]) for name in inputs)
    return Segment(builder.engine, sizes, tuple(shapes[name] for name in outputs), row_counts, builder.makers)
