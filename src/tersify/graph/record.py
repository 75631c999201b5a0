"""A module becomes a graph: torch.export writes down its operations, and the result is
compared with the module.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.nn.utils import parametrize

from tersify.exporting import exported
from tersify.graph.graph_module import GraphNetwork, parsed
from tersify.graph.json_arguments import Json, dtype_name, tensor_to_json, to_json
from tersify.graph.operations import name_of
from tersify.modes import eval_mode

MOST_CONSTANT_BYTES = 1 << 22
TOLERANCE = 1e-5  # of the largest output
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
_NORM = torch.ops.aten._native_batch_norm_legit_no_training.default


def recorded(model: nn.Module, example: Tensor | Sequence[Tensor]) -> dict[str, Json]:
    """The graph of a module in eval mode, for any batch where torch.export can follow
    that, else for the example's.

    `example` is an input, or one for each argument. A module that torch.export does not
    follow is refused.
    """
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    if not inputs or not all(isinstance(each, Tensor) for each in inputs):
        raise ValueError(
            "an example is a tensor, or a tensor for each argument of the network"
        )
    if any(map(parametrize.is_parametrized, model.modules())):
        raise ValueError(
            "the network is in a session; end that with session.bake_(), or give a fresh network"
        )
    # A recorded input must not carry a history of gradients into the trace.
    inputs = tuple(each.detach() for each in inputs)
    with eval_mode(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # First with a free batch; only if torch.export, or the comparison with the
        # module, refuses that, with the batch of the example.
        try:
            return _for_any_batch(model, inputs)
        except Exception as error:  # torch.export raises many kinds
            problem = error
        try:
            return _checked(model, _exported(model, inputs, None), [inputs])
        except Exception as error:
            # Messages of torch.export run to pages; the start tells the cause.
            why = " ".join(str(error or problem).split())[:200]
            raise ValueError(
                f"{type(model).__name__} cannot be written down as a graph: {why}"
            ) from error


def _for_any_batch(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Json]:
    # Without a first axis there is no batch to leave open.
    if any(not each.ndim or not len(each) for each in inputs):
        raise ValueError("without a batch")
    # torch.export takes a size of 1 for a constant
    several = tuple(torch.cat([each, each, each]) for each in inputs)
    free = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
    # A batch of 1 is compared as well: the trace never saw one, and broadcasting may
    # make the graph do something else there.
    few = [tuple(each[:count] for each in several) for count in (1, 3)]
    return _checked(model, _exported(model, several, free), few)


def _exported(model: nn.Module, inputs: tuple[Tensor, ...], free: Any) -> Any:
    return exported(model, inputs, dynamic_shapes=free).run_decompositions({})


def _checked(
    model: nn.Module, program: Any, examples: list[tuple[Tensor, ...]]
) -> dict[str, Json]:
    """The graph, which gives on the examples what the module gives."""
    graph = _graph(program, examples[0])
    # The comparison goes through the same parser that will read the file.
    network = GraphNetwork(
        parsed(graph), {name: tuple(t.shape) for name, t in model.state_dict().items()}
    )
    network.load_state_dict(model.state_dict())
    for inputs in examples:
        for ours, theirs in zip(
            _leaves(network(*inputs)), _leaves(model(*inputs)), strict=True
        ):
            # The tolerance follows the largest output, because single outputs near zero
            # carry the rounding error of large summands.
            scale = float(theirs.abs().max()) if theirs.numel() else 0.0
            if ours.shape != theirs.shape or not torch.allclose(
                ours.double(),
                theirs.double(),
                rtol=0,
                atol=TOLERANCE * max(scale, 1e-30),
                equal_nan=True,
            ):
                raise ValueError("the graph does not give what the network gives")
    return graph


def _leaves(outputs: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(outputs)


def _graph(program: Any, example: tuple[Tensor, ...]) -> dict[str, Json]:
    signature, places = program.graph_signature, {}
    constants: dict[str, Json] = {}
    inputs: list[str] = []
    for spec in signature.input_specs:
        # torch.export passes weights, buffers and constants as further inputs. What the
        # state dict holds is stored with the weights; a buffer that is not saved is a
        # constant.
        if (
            spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)
            and spec.target in program.state_dict
        ):
            places[spec.arg.name] = f"state.{spec.target}"
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            constants[spec.arg.name] = tensor_to_json(program.constants[spec.target])
        elif spec.kind is InputKind.USER_INPUT and len(inputs) < len(example):
            inputs.append(spec.arg.name)
        else:
            raise ValueError(f"it has an input {spec.arg.name!r} that is no tensor")
    # Constants stand as base64 in the metadata, which is meant to be small.
    if sum(len(each["data"]) for each in constants.values()) > MOST_CONSTANT_BYTES:
        raise ValueError(
            "its constants are too large; register them as buffers that are saved"
        )
    # Every further output is a changed buffer, which a graph of pure operations cannot
    # express.
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in signature.output_specs):
        raise ValueError("its forward changes its own state")
    nodes, output = _nodes(program, places)
    # Sizes that torch.export left open are symbols there and not ints; they are written
    # as null.
    declared = {
        node.name: node.meta["val"]
        for node in program.graph.nodes
        if node.op == "placeholder"
    }
    return {
        "inputs": [
            [
                name,
                [n if isinstance(n, int) else None for n in declared[name].shape],
                dtype_name(declared[name].dtype),
            ]
            for name in inputs
        ],
        "state": [
            [name, dtype_name(tensor.dtype), isinstance(tensor, nn.Parameter)]
            for name, tensor in program.state_dict.items()
        ],
        "constants": constants,
        "nodes": nodes,
        "output": _tree(program.call_spec.out_spec, iter(output)),
    }


def _nodes(program: Any, places: dict[str, str]) -> tuple[list[Json], list[Json]]:
    def named(node: torch.fx.Node) -> str:
        return places.get(node.name, node.name)

    nodes: list[Json] = []
    output: list[Json] = []
    for node in program.graph.nodes:
        if node.op == "output":
            output = [to_json(each, named) for each in node.args[0]]
        # A node without readers is dead code. A norm is judged by its getitem nodes
        # below.
        elif node.op != "call_function" or (
            not node.users and node.target is not _NORM
        ):
            continue
        elif node.target is _NORM:
            # torch.export writes batch norm in an internal form with three results. The
            # plain `batch_norm` in eval mode gives the one of them that is read.
            image, weight, bias, mean, var, momentum, eps = node.args
            args = [image, weight, bias, mean, var, False, momentum, eps, False]
            nodes.append(
                [node.name, "aten.batch_norm.default", to_json(args, named), {}]
            )
        elif (
            getattr(node.args[0] if node.args else None, "target", None) is _NORM
            and node.args[1] == 0
        ):
            # of three results, of which the others are empty
            places[node.name] = named(node.args[0])
        else:
            # Which strides a view meets may differ from machine to machine; a reshape
            # copies where it must.
            name = (
                "aten.reshape.default"
                if node.target in _VIEWS
                else name_of(node.target)
            )
            if name is None:
                raise ValueError(f"it uses {node.target}, which a graph may not name")
            kwargs = {key: to_json(value, named) for key, value in node.kwargs.items()}
            nodes.append([node.name, name, to_json(list(node.args), named), kwargs])
    return nodes, output


def _tree(spec: Any, leaves: Any) -> Json:
    """The outputs in their nesting: one, a list, or an object by names."""
    # `leaves` runs through the outputs in the order in which torch flattened them.
    if spec.is_leaf():
        return next(leaves)
    if spec.type in (tuple, list):
        return [_tree(child, leaves) for child in spec.children()]
    # torch keeps the keys of a dict in `context`, in the order of the children.
    if spec.type is dict:
        return {
            "names": {
                key: _tree(child, leaves)
                for key, child in zip(spec.context, spec.children(), strict=True)
            }
        }
    raise ValueError(
        f"its forward returns a {spec.type.__name__}; return a tensor, a tuple or a dict"
    )
