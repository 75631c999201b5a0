"""A captured graph → the plan to run: lowered, fused, and with a kernel chosen for
every layer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from tersify.runtime.capture import Graph
from tersify.runtime.costs import Costs, costs_of_this_cpu
from tersify.runtime.engine import Kernels
from tersify.runtime.lower import lower
from tersify.runtime.network import runs_of_nodes
from tersify.runtime.ops import Conv, Embedding, Linear, Recurrent
from tersify.runtime.passes import (
    choose,
    fuse,
    segment_gain,
    serves_fp16,
    with_code_convolutions,
    with_fp16,
    with_level_kernels,
    with_levels,
    with_levels_inside,
    with_rms_norms,
    with_shortcuts_as_convolutions,
)
from tersify.runtime.passes.quantize import (
    observed,
    quantized_values,
    rounds,
    with_faint_in_fp32,
    with_int8_kernels,
)
from tersify.runtime.plan import Node, Plan, Quant
from tersify.runtime.rewrites import rewritten
from tersify.runtime.weights import Weight
from tersify.tensor import CompressedTensor
from tersify.tensor.origin import origins_of

Observation = tuple[Graph, Sequence[Tensor]]


class Planner:
    """Plans of one network for any size: they share what is known of its weights and of
    the ranges of its values.
    """

    def __init__(
        self, model: nn.Module, precision: str, kernels: Kernels | None
    ) -> None:
        self.precision = precision
        self._kernels = kernels
        self._classified: dict[str, Weight] = {}
        self._origins: Mapping[str, CompressedTensor] = origins_of(model)
        self._quants: dict[str, Quant] = {}
        # of the graph whose values have known ranges
        self._calls: list[object] | None = None
        self._int8 = precision == "int8"
        self._fp16 = False
        if precision == "fp16" and kernels is not None:
            self._fp16 = serves_fp16(kernels.module, kernels.workspace.isa)
            if not self._fp16:
                warnings.warn(
                    "this CPU has no AVX512-FP16; compiling in fp32",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def calibrate(self, observations: Sequence[Observation]) -> None:
        """Learn the ranges of the values from what the network sees. From now on int8
        activations are allowed.
        """
        self._int8 = True
        # Ranges are kept by the names of values. Those only mean the same values where
        # the network makes the same calls.
        self._calls = [call.target for call in observations[0][0].calls]
        # Ranges are taken from the fused plan in fp32, because only its values exist in
        # the plan that will run: the inside of an epilogue is never rounded.
        floats = [
            (fuse(self._lowered(graph, frozenset())), inputs)
            for graph, inputs in observations
        ]
        for graph, _ in observations:
            if [call.target for call in graph.calls] != self._calls:
                raise ValueError(
                    "the network computes something else for some calibration batches; give batches of one kind"
                )
        self._quants = observed(floats)

    @property
    def rounds_activations(self) -> bool:
        """Whether plans differ from the module by more than the order of sums."""
        return self._fp16 or (self._int8 and self.precision in ("int8", "auto"))

    def floats(self, graph: Graph, refused: frozenset[str] = frozenset()) -> Plan:
        """The plan in fp32, whatever the precision: what the module itself is compared
        with.
        """
        return self._settled(graph, refused, self._chosen_for_floats)

    def plan(self, graph: Graph, refused: frozenset[str] = frozenset()) -> Plan:
        chosen: Callable[[Plan], Plan] = self._chosen_for_floats
        if self.precision in ("int8", "auto") and self._int8:
            # The ranges were learned for exactly these operations; for others they
            # would be attached to the wrong values.
            if [call.target for call in graph.calls] == self._calls:
                chosen = self._chosen_for_int8
            else:
                warnings.warn(
                    "at this size the network computes something else than at the sizes of its calibration, so it runs "
                    "in fp32; compile it with an example of this size",
                    RuntimeWarning,
                    stacklevel=5,
                )
        elif self._fp16:
            chosen = with_fp16
        # Only a request for int8 deserves the warning: "auto" may well choose fp32.
        plan = self._settled(graph, refused, chosen)
        if (
            self.precision == "int8"
            and chosen == self._chosen_for_int8
            and not rounds(plan)
        ):
            warnings.warn(
                "precision='int8' changes nothing: no layer has levels, and values to read, that 8 bits hold well "
                "enough, so the network runs in fp32",
                RuntimeWarning,
                stacklevel=5,
            )
        return plan

    def _settled(
        self, graph: Graph, refused: frozenset[str], chosen: Callable[[Plan], Plan]
    ) -> Plan:
        """Kernels between torch calls that gain less than it takes to call them go to
        torch, until none is left.
        """
        # Sending one node to torch can leave its neighbour alone between torch calls,
        # so the plan is made again. `lonely` only grows, so this ends.
        lonely: frozenset[str] = frozenset()
        while True:
            plan = fuse(self._lowered(graph, refused, lonely))
            if self._kernels is not None:
                plan = with_level_kernels(plan)
            plan = with_levels_inside(chosen(plan))
            more = frozenset[str]().union(*(node.covers for node in self._lonely(plan)))
            if not more - lonely:
                return plan
            lonely = lonely | more

    def _lonely(self, plan: Plan) -> list[Node]:
        """Nodes of runs between torch calls that are worth no call of the engine."""
        # Without torch calls the engine is entered once, and every node shares that.
        if not any(node.in_torch for node in plan.nodes):
            return []
        # those were asked for, at any cost
        by_cost = None if self.precision in ("int8", "fp16") else self._costs()
        found = []
        for run in runs_of_nodes(plan):
            if not run[0].in_torch and not self._is_worth_a_call(run, by_cost):
                found.extend(run)
        return found

    def _is_worth_a_call(self, run: Sequence[Node], costs: Costs | None) -> bool:
        # its steps are hundreds of torch calls
        if any(isinstance(node.op, Recurrent) for node in run):
            return True
        # Only layers with weights gain by the engine; the rest does not pay for a call.
        if not any(isinstance(node.op, (Conv, Linear, Embedding)) for node in run):
            return False
        return costs is None or segment_gain(run, costs, threads=self._threads) > 0

    def _lowered(
        self,
        graph: Graph,
        refused: frozenset[str],
        lonely: frozenset[str] = frozenset(),
    ) -> Plan:
        plan = lower(
            rewritten(graph, refused | lonely),
            classified=self._classified,
            origins=self._origins,
            refused=refused,
            lonely=lonely,
        )
        plan = with_rms_norms(plan)
        # A plan for other machines has no such rounding yet.
        return plan if self._kernels is None else with_levels(plan)

    @property
    def _threads(self) -> int:
        return 1 if self._kernels is None else int(self._kernels.workspace.threads)

    def _costs(self) -> Costs | None:
        return (
            None if self._kernels is None else costs_of_this_cpu(self._kernels.module)
        )

    def _chosen_for_floats(self, plan: Plan) -> Plan:
        costs = self._costs()
        return (
            plan
            if costs is None
            else with_shortcuts_as_convolutions(choose(plan, costs, int8=False))
        )

    def _chosen_for_int8(self, plan: Plan) -> Plan:
        costs = self._costs()
        plan = with_faint_in_fp32(plan, self._quants)
        # Asked for int8, every layer that can takes it. With "auto" the costs decide.
        if self.precision == "int8":
            plan = with_int8_kernels(with_code_convolutions(plan))
        if costs is not None:
            plan = choose(plan, costs, int8=self.precision == "auto")
        # Only values that an int8 kernel reads or writes have fixed steps.
        return replace(
            plan, quants={name: self._quants[name] for name in quantized_values(plan)}
        )
