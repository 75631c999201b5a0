"""torch.export's graph → the plan's nodes, one for one; what has no kernel stays a torch call."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from tersify.runtime import lower_pointwise as lower_pointwise  # registers its lowerings
from tersify.runtime.inputs import check_runs
from tersify.runtime.lower import LOWERINGS, CannotLower, Context
from tersify.runtime.plan import Input, Node, Plan, Ref
from tersify.tensor.model import PACKED_ATTRIBUTE


def capture(model: nn.Module, example: tuple[Tensor, ...]) -> tuple[Plan, Any]:
    """The plan of `model` in eval mode, unfused, and the structure of its outputs."""
    program, batch = _export(model, example)
    signature = program.graph_signature
    stored = {**program.state_dict, **program.constants}
    targets = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    constants = {name: stored[target].detach() for name, target in targets.items()}
    packed = getattr(model, PACKED_ATTRIBUTE, None) or {}
    context = Context(constants=dict(constants), names=dict(targets), packed=packed, batch=batch)
    inputs = []
    nodes: list[Node] = []
    outputs: tuple[str, ...] = ()
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in constants:
            value = node.meta["val"]
            inputs.append(Input(name=node.name, shape=tuple(value.shape[1:]), dtype=value.dtype))
        elif node.op == "output":
            outputs = tuple(_output_name(value) for value in node.args[0])
        elif node.op == "call_function":
            if _fold_constant(node, context):
                continue
            nodes.append(_lowered(node, context))
    plan = Plan(inputs=tuple(inputs), nodes=tuple(nodes), outputs=outputs, constants=context.constants, batch=batch)
    return plan.live(), program.call_spec.out_spec


def _export(model: nn.Module, example: tuple[Tensor, ...]) -> tuple[torch.export.ExportedProgram, int | None]:
    """Any batch size where the model allows it: then the second result is None."""
    # Export treats a batch of one as a constant, so it is shown two.
    shown = tuple(torch.cat([x, x]) if len(x) == 1 else x for x in example)
    dynamic = tuple({0: torch.export.Dim("batch", min=1)} for _ in example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            shapes = (dynamic,) if _variadic(model) else dynamic
            return torch.export.export(model, shown, dynamic_shapes=shapes), None
        except Exception:  # of many kinds: some models fix their batch size
            try:
                return torch.export.export(model, example), len(example[0])
            except Exception as error:
                check_runs(model, example)
                reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
                raise ValueError(
                    f"torch.export cannot capture {type(model).__name__}: {reason}; compile the part of the model "
                    "that it can capture"
                ) from error


def _variadic(model: nn.Module) -> bool:
    code = getattr(model.forward, "__code__", None)
    return bool(code and code.co_flags & 0x04)


def _output_name(value: Any) -> str:
    if not isinstance(value, torch.fx.Node):
        raise ValueError(f"the model returns {value!r}; compile needs outputs that are tensors")
    return value.name


def _fold_constant(node: torch.fx.Node, context: Context) -> bool:
    """Compute at once what depends on no input, such as a weight behind a parametrization."""
    sources = node.all_input_nodes
    if not sources or not all(s.name in context.constants for s in sources):
        return False
    args = torch.fx.map_arg(node.args, lambda n: context.constants[n.name])
    kwargs = torch.fx.map_arg(node.kwargs, lambda n: context.constants[n.name])
    with torch.no_grad():
        result = node.target(*args, **kwargs)  # type: ignore[operator]
    if not isinstance(result, Tensor):
        return False
    context.constants[node.name] = result
    return True


def _lowered(node: torch.fx.Node, context: Context) -> Node:
    reason = "no kernel for it"
    lowering = LOWERINGS.get(node.target)
    if lowering is not None:
        try:
            return lowering(node, context)
        except CannotLower as error:
            reason = str(error)
    return _torch_call(node, reason)


def _torch_call(node: torch.fx.Node, reason: str) -> Node:
    value = node.meta.get("val")
    shape = tuple(int(n) if isinstance(n, int) else -1 for n in value.shape[1:]) if isinstance(value, Tensor) else ()
    assert callable(node.target)
    return Node(
        name=node.name,
        kind="torch",
        inputs=tuple(n.name for n in node.all_input_nodes),
        shape=shape,
        call=node.target,
        args=_with_refs(node.args),
        kwargs=_with_refs(node.kwargs),
        reason=reason,
    )


def _with_refs(arguments: Any) -> Any:
    return torch.fx.map_arg(arguments, lambda n: Ref(n.name))  # type: ignore[arg-type, return-value]
