"""A graph becomes a module again, under the same names of its weights. Nothing is run
that the graph does not list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tersify.graph.json_arguments import (
    Json,
    dtype_of,
    from_json,
    is_shape,
    names_in,
    tensor_from_json,
)
from tersify.graph.operations import computation, makes_tensors

MOST_VALUE_BYTES = 1 << 33  # of one value in between, for a batch of two


@dataclass(frozen=True)
class Input:
    name: str
    shape: tuple[int | None, ...]  # None: any
    dtype: torch.dtype

    def takes(self, given: Tensor) -> bool:
        # Of floats any kind goes, as with other modules: it must be that of the
        # weights, and torch says so.
        floats = given.is_floating_point() and self.dtype.is_floating_point
        if not floats and given.dtype != self.dtype:
            return False
        if len(given.shape) != len(self.shape):
            return False
        sizes = zip(self.shape, given.shape, strict=True)
        return all(wanted is None or wanted == size for wanted, size in sizes)


@dataclass(frozen=True)
class Node:
    name: str
    compute: Callable[..., Any]
    args: Json
    kwargs: dict[str, Json]
    makes_tensors: bool
    spent: tuple[str, ...]  # values that nobody reads afterwards


@dataclass(frozen=True)
class Graph:
    inputs: list[Input]
    # by name: its kind, and whether it is a parameter
    state: dict[str, tuple[torch.dtype, bool]]
    constants: dict[str, Tensor]
    nodes: list[Node]
    output: Json


def parsed(given: Json) -> Graph:
    """The graph of a file's metadata, checked: a wrong one raises ValueError here, and
    nothing has run.
    """
    try:
        inputs = [
            # The unpacking is the check: an entry of another length raises ValueError.
            Input(name, tuple(shape), dtype_of(kind))
            for name, shape, kind in given["inputs"]
        ]
        state = {
            name: (dtype_of(kind), bool(learned))
            for name, kind, learned in given["state"]
        }
        constants = {
            name: tensor_from_json(each) for name, each in given["constants"].items()
        }
        listed = [(name, op, args, kwargs) for name, op, args, kwargs in given["nodes"]]
        output = given["output"]
    except (KeyError, TypeError, AttributeError, IndexError) as problem:
        raise ValueError(
            f"the graph is not as it should be ({type(problem).__name__}: {problem})"
        ) from None
    # A free axis (None) stands for any size, so it passes as 1.
    for each in inputs:
        if not is_shape([1 if n is None else n for n in each.shape]):
            raise ValueError(
                f"an input of the graph has the shape {list(each.shape)!r}"
            )
    known = [
        *(each.name for each in inputs),
        *(f"state.{name}" for name in state),
        *constants,
    ]
    # All values live in one namespace. Two of one name would silently overwrite each
    # other when the graph runs.
    names = [*known, *(name for name, *_ in listed)]
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(
        names
    ):
        raise ValueError("the names of a graph's values must be texts, no two the same")
    return Graph(inputs, state, constants, _nodes(listed, set(known), output), output)


def _nodes(
    listed: list[tuple[str, Any, Any, Any]], known: set[str], output: Json
) -> list[Node]:
    # The index of the last node that reads a value.
    last: dict[str, int] = {}
    for index, (name, _, args, kwargs) in enumerate(listed):
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise ValueError(f"the arguments of {name!r} are no list and object")
        # Nodes are listed in the order they run, so a value that was not seen yet is a
        # forward reference or a cycle. Either is refused before anything runs.
        for read in names_in([args, list(kwargs.values())]):
            if read not in known:
                raise ValueError(
                    f"{name!r} reads {read!r}, which does not come before it"
                )
            last[read] = index
        known.add(name)
    kept = set(_outputs(output))
    if not kept <= known:
        raise ValueError("the graph gives a value that it does not have")
    # A value that is not an output dies with its last reader. Without this a run would
    # hold every activation at once. Weights stay: the module owns them.
    spent: dict[int, list[str]] = {}
    for read, index in last.items():
        if read not in kept and not read.startswith("state."):
            spent.setdefault(index, []).append(read)
    nodes = []
    for index, (name, op, args, kwargs) in enumerate(listed):
        # Only operations of the allowed list are found.
        compute = computation(op) if isinstance(op, str) else None
        if compute is None:
            raise ValueError(f"the graph names the operation {op!r}, which it may not")
        nodes.append(
            Node(
                name,
                compute,
                args,
                kwargs,
                makes_tensors(op),
                tuple(spent.get(index, ())),
            )
        )
    return nodes


def _outputs(output: Json) -> list[str]:
    # Outputs nest as the module's result did: lists for tuples, objects for dicts.
    if isinstance(output, list):
        return [name for each in output for name in _outputs(each)]
    # An output with named fields, such as a dict that forward returns.
    if isinstance(output, dict) and isinstance(output.get("names"), dict):
        return [name for each in output["names"].values() for name in _outputs(each)]
    names = names_in(output)
    if not names:
        raise ValueError(f"the graph gives {output!r}, which is no value of it")
    return names


def network_of(
    given: Json, shapes: Mapping[str, tuple[int, ...]], *, max_bytes: int
) -> GraphNetwork:
    """The network of a file's graph, with weights yet to come; `shapes` are those of
    the file's tensors.

    It runs once without memory, so that a graph that cannot run, or takes far more of
    it than it should, is refused.
    """
    try:
        graph = parsed(given)
    except RecursionError:
        raise ValueError("the graph is nested too deeply") from None
    # The file's tensors are the weights. A name on one side only would leave a weight
    # at zero, or a tensor unread.
    if graph.state.keys() != shapes.keys():
        raise ValueError("the graph and the file name different tensors")
    total = sum(
        math.prod(shapes[name]) * kind.itemsize
        for name, (kind, _) in graph.state.items()
    )
    if total > max_bytes:
        raise ValueError(
            f"its weights take {total:,} bytes, max_decoded_bytes allows {max_bytes:,}"
        )
    try:
        # Meta tensors have a shape and no memory, so a hostile graph is tried at no
        # cost. A free axis is tried with 2, since torch treats a size of 1 as special.
        with torch.device("meta"):
            network = _class_for(graph)(graph, shapes)
            examples = [
                torch.empty([2 if n is None else n for n in i.shape], dtype=i.dtype)
                for i in graph.inputs
            ]
        with torch.no_grad():
            network.run(examples, most_bytes=min(max_bytes, MOST_VALUE_BYTES))
    except Exception as problem:
        # whatever an operation raises for arguments it was not made for
        why = " ".join(str(problem).split())[:200]
        raise ValueError(
            f"the graph does not run ({type(problem).__name__}: {why})"
        ) from None
    # `to_empty` gives memory with arbitrary contents: the file fills the weights, but
    # only `restored` can fill the constants again.
    return network.to_empty(device="cpu").restored().eval()


class GraphNetwork(nn.Module):
    """Runs a graph. Its weights have the names that they had in the network the graph
    was made of.
    """

    def __init__(self, graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self._graph = graph
        for name, (kind, learned) in graph.state.items():
            *path, leaf = name.split(".")
            # Submodules are made along the dotted name, so that `state_dict` has the
            # names of the network the graph was made of.
            home: nn.Module = self
            for part in path:
                if part not in home._modules:
                    home.add_module(part, nn.Module())
                home = home._modules[part]  # type: ignore[assignment]
            tensor = torch.zeros(shapes[name], dtype=kind)
            if learned:
                # Integer parameters exist, and torch refuses gradients for them.
                home.register_parameter(
                    leaf, nn.Parameter(tensor, requires_grad=kind.is_floating_point)
                )
            else:
                home.register_buffer(leaf, tensor)
        # Constants come from the graph, not from the tensors of the file. They are
        # buffers so that `.to(device)` moves them, and not persistent so that
        # `state_dict` does not list them.
        for index, constant in enumerate(graph.constants.values()):
            self.register_buffer(
                f"_constant{index}",
                constant.to(torch.get_default_device(), copy=True),
                persistent=False,
            )

    def restored(self) -> GraphNetwork:
        """With the graph's constants, after the memory was made anew."""
        for index, constant in enumerate(self._graph.constants.values()):
            setattr(self, f"_constant{index}", constant.clone())
        return self

    def forward(self, *inputs: Tensor) -> Any:
        # A wrong input is refused here, by the sizes that were recorded. Inside the
        # graph it would fail at some operation whose name means nothing to the user.
        if len(inputs) != len(self._graph.inputs):
            raise ValueError(
                f"the network takes {len(self._graph.inputs)} inputs, got {len(inputs)}"
            )
        for given, wanted in zip(inputs, self._graph.inputs, strict=True):
            if not wanted.takes(given):
                shape = "×".join("N" if n is None else str(n) for n in wanted.shape)
                raise ValueError(
                    f"the network was written down for inputs {shape} of {wanted.dtype}, got "
                    f"{tuple(given.shape)} of {given.dtype}; load the file into the network's own module for others"
                )
        return self.run(list(inputs))

    def run(self, inputs: list[Tensor], *, most_bytes: int | None = None) -> Any:
        graph = self._graph
        values: dict[str, Any] = {
            each.name: given for each, given in zip(graph.inputs, inputs, strict=True)
        }
        # `keep_vars` passes the parameters themselves, so that gradients reach them.
        values |= {
            f"state.{name}": tensor
            for name, tensor in self.state_dict(keep_vars=True).items()
        }
        values |= {
            name: getattr(self, f"_constant{index}")
            for index, name in enumerate(graph.constants)
        }
        # The graph was recorded on some device; it runs where its inputs are.
        device = inputs[0].device
        for node in graph.nodes:
            arguments = from_json(node.args, values, device)
            settings = {
                key: from_json(value, values, device)
                for key, value in node.kwargs.items()
            }
            if node.makes_tensors:
                settings["device"] = device
            result = node.compute(*arguments, **settings)
            # A graph of a few bytes can ask for a value of any size, for instance by
            # `zeros`.
            if most_bytes is not None and _size_bytes(result) > most_bytes:
                raise ValueError(f"{node.name!r} takes {_size_bytes(result):,} bytes")
            values[node.name] = result
            # Nobody reads these values again, so their memory is free from here on.
            for name in node.spent:
                del values[name]
        return _nested_outputs(graph.output, values)


class _OfOneInput(GraphNetwork):
    """With a signature that says so, for programs that read it."""

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return super().forward(x)


_OfOneInput.__name__ = GraphNetwork.__name__  # in errors: it is the same to a user


def _class_for(graph: Graph) -> type[GraphNetwork]:
    return _OfOneInput if len(graph.inputs) == 1 else GraphNetwork


def _size_bytes(result: Any) -> int:
    # `split` and its like give several tensors.
    if isinstance(result, (list, tuple)):
        return sum(map(_size_bytes, result))
    return result.numel() * result.element_size() if isinstance(result, Tensor) else 0


def _nested_outputs(output: Json, values: Mapping[str, Any]) -> Any:
    # The file does not tell tuples from lists; modules return tuples as a rule.
    if isinstance(output, list):
        return tuple(_nested_outputs(each, values) for each in output)
    if "names" in output:
        return {
            name: _nested_outputs(each, values)
            for name, each in output["names"].items()
        }
    return values[output["value"]]
