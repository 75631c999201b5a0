"""A model's calculation as a graph of torch operations, each with the parameters it
reads.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from tersify.exporting import exported, told_by
from tersify.units.attention import HeadAttention

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class Trace:
    """`stored`: placeholder → the name of the parameter or buffer; `packed`: see
    `Labels`.

    `model` is a copy in eval mode with its attention split, and `tensors` are its own.
    """

    model: nn.Module
    graph: fx.Graph
    stored: dict[fx.Node, str]
    tensors: dict[str, Tensor]
    packed: dict[str, tuple[str, int]]

    @property
    def dims(self) -> dict[str, int]:
        """How many dimensions each tensor has, under the names the model itself uses."""
        return {
            self.packed.get(name, (name, 0))[0]: tensor.dim()
            for name, tensor in self.tensors.items()
        }


def trace(model: nn.Module, example: Example) -> Trace:
    """The operations of `model(example)` in eval mode. The model is not changed."""
    _refuse_parametrized(model)
    # Tracing must not touch the user's model, and attention is rewritten below.
    twin = copy.deepcopy(model).eval()
    packed = split_attention_(twin)
    args, kwargs = call_arguments(example)
    try:
        with torch.no_grad():
            program = exported(twin, args, kwargs, strict=False)
    except Exception as error:
        # whatever the user's forward does wrong, or torch.export cannot follow
        raise ValueError(
            f"{type(model).__name__} cannot be traced with this example ({told_by(error)}); "
            "give an example that model(example) accepts, and a forward without branches on values"
        ) from error
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    # Tied parameters have several names; reversed, so that the first one wins.
    first_name = {id(t): n for n, t in reversed([*_stored(twin)])}
    tensors = dict(_stored(twin))
    graph = program.graph_module.graph
    # An operation that nobody reads would freeze its units for nothing.
    graph.eliminate_dead_code()
    stored = {
        node: first_name[id(tensors[names[node.name]])]
        for node in graph.nodes
        if node.op == "placeholder" and node.name in names
    }
    return Trace(twin, graph, stored, tensors, packed)


def call_arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A mapping holds keyword arguments, a tuple positional ones; anything else is the
    one argument.
    """
    if isinstance(example, Mapping):
        return (), dict(example)
    return (example if isinstance(example, tuple) else (example,)), {}


def split_attention_(model: nn.Module) -> dict[str, tuple[str, int]]:
    """Give every nn.MultiheadAttention a linear layer each for queries, keys and
    values.

    Returns for each part's parameter the packed one of the original, and the row the
    part starts at.
    """
    packed: dict[str, tuple[str, int]] = {}
    for name, module in list(model.named_modules()):
        # The root itself cannot be replaced in its parent.
        if name and HeadAttention.can_replace(module):
            assert isinstance(module, nn.MultiheadAttention)
            model.set_submodule(name, HeadAttention(module))
            for i, part in enumerate(("q_proj", "k_proj", "v_proj")):
                for kind in ("weight", "bias"):
                    packed[f"{name}.{part}.{kind}"] = (
                        f"{name}.in_proj_{kind}",
                        i * module.embed_dim,
                    )
    return packed


def _stored(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def _refuse_parametrized(model: nn.Module) -> None:
    # A parametrized weight is computed at each call, so there is no stored tensor whose
    # rows could be cut.
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            raise ValueError(
                f"{name or type(module).__name__!r} is parametrized; find units before attaching a session, "
                "or end the session with session.bake_()"
            )
