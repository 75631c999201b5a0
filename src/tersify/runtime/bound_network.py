"""A network bound to one set of input sizes: captured, planned, checked against its
module, ready to run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from tersify.runtime.after_fork import make_torch_safe
from tersify.runtime.capture import Captured, Graph, Ref
from tersify.runtime.check import (
    FP32_TOLERANCE,
    MOST_LOST,
    ROUNDED_TOLERANCE,
    difference,
    differs_from_reference,
    first_wrong_node,
    first_wrong_rounding,
    graph_values,
    largest_difference,
    lost_by_rounding,
    rounds_in_between,
)
from tersify.runtime.engine import Kernels, Segment
from tersify.runtime.fingerprint import fingerprint
from tersify.runtime.inputs import in_order, strides_in_order
from tersify.runtime.nested import Structure
from tersify.runtime.network import Network
from tersify.runtime.planner import Planner
from tersify.runtime.returned import Returned
from tersify.runtime.shared_inputs import refuse_fixed_tensors, writes_are_seen

# nodes that are sent back to torch one by one; after that all of them are
MAX_RETURNS = 8


class Bound:
    """One graph and the network that runs it. Inputs and state that the forward changes
    are changed here, too.
    """

    def __init__(self, graph: Graph, network: Network, given: Sequence[Tensor]) -> None:
        self.graph = graph
        self.network = network
        made = None if graph.random else network.run(given)
        self._returned = Returned(graph, given, made, network.plan.constants)
        self.returns_one_tensor = type(graph.outputs) is Ref
        self._names = graph.results
        self._outputs = Structure(graph.outputs)
        self.depends_on_strides = graph.depends_on_strides
        # calls with inputs of the same sizes may still differ
        self.looks_at_memory = (
            graph.depends_on_strides or bool(graph.written) or self.is_entangled
        )
        self.minds_strides = self._returned.minds_strides
        # runs instead of the network, where it is faster
        self.module: nn.Module | None = None
        self._plain = (
            self.returns_one_tensor and not graph.written and len(self._names) == 1
        )
        # of a result that is a plain tuple of tensors, where each is among the outputs
        self._tuple = (
            [self._names.index(leaf.name) for leaf in graph.outputs]
            if type(graph.outputs) is tuple
            and all(type(leaf) is Ref for leaf in graph.outputs)
            else None
        )
        self._strides = [strides_in_order(graph.values[n].shape) for n in graph.inputs]

    def call(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any] = MappingProxyType({})
    ) -> Any:
        """What the module returns: by calling it, or by the network, which takes
        positional tensors only.
        """
        make_torch_safe()
        if self.module is None:
            return self.run(args)
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        with torch.no_grad():
            return self.module(*args, **kwargs)

    def call_unseen(self, args: tuple[Any, ...]) -> Any:
        """The same, where nobody has a hook that would see the call."""
        make_torch_safe()
        if self.module is None:
            return self.run(args)
        if not torch.is_grad_enabled():
            return self.module.forward(*args)
        with torch.no_grad():
            return self.module.forward(*args)

    def run(self, inputs: Sequence[Tensor]) -> Any:
        """What the module would return."""
        if torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):  # the graph has the casts
                return self.run(inputs)
        made = self._run_flat(inputs)
        if not self._returned.is_as_made:
            made = self._returned.finished(made, inputs)
        return made[0] if self._plain else self.like_the_module(made)

    def run_flat(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of the plan's outputs, each with memory of its own."""
        return self._returned.alone(self._run_flat(inputs))

    def _run_flat(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The same as the network made them, after the module's changes to inputs and
        state.
        """
        made = self.network.run([*self.laid_out(inputs), *self.graph.state.values()])
        if self.graph.written:
            # The module writes to these tensors in place, so the caller expects to see
            # it.
            values = dict(zip(self._names, made, strict=True))
            places = dict(zip(self.graph.inputs, inputs, strict=True)) | dict(
                self.graph.state
            )
            with torch.no_grad():
                for place, name in self.graph.written.items():
                    places[place].copy_(values[name])
        return made

    def needs_the_module(self, inputs: Sequence[Tensor]) -> bool:
        """Whether a write reaches what else this call reads, or a result shares memory
        in a way that no plan can give, so that only the module itself is right.
        """
        if self._returned.needs_the_module(inputs):
            return True
        if self.is_entangled:
            return self.module is None
        if not self.graph.written:
            return False
        refuse_fixed_tensors(self.graph, inputs)
        return writes_are_seen(self.graph, inputs)

    @property
    def is_entangled(self) -> bool:
        """Only the module itself returns results that share memory as its own do."""
        return self._returned.is_entangled

    def laid_out(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The inputs as the capture had them: one number behind the other, unless it
        kept their strides.
        """
        if self.depends_on_strides:
            return inputs
        return [
            x if x.stride() == strides else in_order(x)
            for x, strides in zip(inputs, self._strides, strict=True)
        ]

    def like_the_module(self, made: Sequence[Tensor]) -> Any:
        """The tensors in the structure that the module returns."""
        if self._tuple is not None:
            return tuple([made[i] for i in self._tuple])
        values = dict(zip(self._names, made, strict=True))
        return self._outputs.made(
            lambda leaf: values[leaf.name] if type(leaf) is Ref else leaf
        )

    @property
    def may_be_the_module(self) -> bool:
        """Torch may be faster, and no call changes anything or draws a random number."""
        # Both ways are timed by calling them several times, so a call must leave no
        # trace.
        still = (
            not self.graph.written and not self.graph.state and not self.graph.random
        )
        return still and not self.depends_on_strides and self.network.may_lose

    def only_segment(self) -> Segment | None:
        """Where the whole network is one C++ call of floats with one result, however
        they are laid out.
        """
        # The C++ call bypasses everything that `run_flat` does, writing back inputs and
        # state and looking at strides, and the choice of the module instead.
        simple = self._plain and self._returned.is_as_made and not self.graph.state
        simple = simple and not (self.depends_on_strides or self.may_be_the_module)
        segment = self.network.only_segment() if simple else None
        return segment if segment is not None and segment.takes_only_floats else None


def bind(
    captured: Captured,
    inputs: Sequence[Tensor],
    planner: Planner,
    kernels: Kernels | None,
    *,
    strict: bool,
) -> Bound:
    """The network for these sizes, whose kernels agree with the module on these inputs."""
    try:
        with torch.autocast("cpu", enabled=False):  # the graph has the casts
            return _bound(captured, inputs, planner, kernels, strict=strict)
    except RuntimeError as problem:
        why = str(problem).strip().partition("\n")[0][:200]
        raise ValueError(
            f"the captured operations cannot be run a second time ({why}), so this module cannot be compiled; compile "
            "the parts before and after what torch complains of"
        ) from problem


def _bound(
    captured: Captured,
    inputs: Sequence[Tensor],
    planner: Planner,
    kernels: Kernels | None,
    *,
    strict: bool,
) -> Bound:
    graph = captured.graph
    given = [*inputs, *graph.state.values()]
    if planner.rounds_activations:
        # Two questions: do the kernels compute what the rounded plan says, and does
        # rounding leave enough of the module's outputs? Random graphs give other
        # numbers each time, so they cannot be compared.
        rounded = Network(planner.plan(graph), kernels)
        apart = 0.0 if graph.random else differs_from_reference(rounded, given)
        lost = 0.0 if graph.random else lost_by_rounding(rounded, given, captured)
        wrong = (
            first_wrong_rounding(rounded, kernels, given)
            if apart > ROUNDED_TOLERANCE and kernels is not None
            else None
        )
        if wrong is None and _keeps_enough(lost, planner.precision):
            return Bound(graph, rounded, given)
        if wrong is not None:
            node, error = wrong
            why = (
                f"{planner.precision} kernels disagree with their reference by {apart:.1e} ({node.kind} "
                f"{getattr(node.op, 'parameter', '') or node.name!r} by {error:.1e}), so fp32 runs"
            )
            _tell(why, strict=strict)
    network = _agreeing(captured, given, planner, kernels, strict=strict)
    return Bound(graph, network, given)


def _keeps_enough(lost: float, precision: str) -> bool:
    """Rounding is what was asked for; that little is left of the outputs is not. "auto"
    then takes fp32.
    """
    # int8 was asked for, so it runs in any case; the user is only told.
    if lost > MOST_LOST and precision == "int8":
        warnings.warn(
            f"with precision='int8' the outputs are {100 * lost:.0f} % off: some activations span more than 8 bits can "
            "tell apart; use precision='fp32' or 'auto', or calibration batches with the usual range",
            RuntimeWarning,
            stacklevel=6,
        )
    return lost <= MOST_LOST or precision != "auto"


def _agreeing(
    captured: Captured,
    given: Sequence[Tensor],
    planner: Planner,
    kernels: Kernels | None,
    *,
    strict: bool,
) -> Network:
    """The fp32 network. What disagrees with torch goes back to torch, node by node."""
    graph = captured.graph
    # Each turn sends the first node that is wrong to torch. After MAX_RETURNS of them
    # everything goes there, and the last turn checks that.
    refused: frozenset[str] = frozenset()
    for attempt in range(MAX_RETURNS + 2):
        network = Network(planner.floats(graph, refused), kernels)
        apart = 0.0 if graph.random else largest_difference(network, given, captured)
        if apart <= FP32_TOLERANCE:
            return network
        wrong = (
            None
            if kernels is None
            else first_wrong_node(network.plan, kernels, graph, given)
        )
        # Every kernel agrees with torch on what torch made: only roundings fell on other
        # sides.
        if wrong is None and kernels is not None and rounds_in_between(network.plan):
            return network
        if wrong is not None and attempt < MAX_RETURNS:
            node, error = wrong
            parameter = getattr(node.op, "parameter", "") or node.name
            what = f"the kernel of {node.kind} {parameter!r} disagreed with torch by {error:.1e}, so torch runs it"
            _tell(what, strict=strict)
            refused = refused | node.covers
        else:
            refused = frozenset(name for call in graph.calls for name in call.results)
    raise ValueError(
        f"the captured operations differ from the module by {apart:.1e} of its largest output; its forward does "
        "something that a capture does not see, so it cannot be compiled"
    )


def agrees(bound: Bound, captured: Captured, inputs: Sequence[Tensor]) -> bool:
    """Whether a bound network also does what the module does with other numbers of the
    same sizes.
    """
    given = [*inputs, *bound.graph.state.values()]
    # Other operations, or constants that were made of numbers.
    if fingerprint(captured.graph) != fingerprint(bound.graph):
        return False
    if captured.graph.random:
        return True
    values = graph_values(bound.graph, given)
    wanted = {name: tensor for name, tensor in captured.made.items() if name in values}
    return all(
        difference(values[name], tensor) <= FP32_TOLERANCE
        for name, tensor in wanted.items()
    )


def _tell(what: str, *, strict: bool) -> None:
    if strict:
        raise ValueError(f"{what}; compile without strict=True to allow it")
    warnings.warn(what, RuntimeWarning, stacklevel=2)
