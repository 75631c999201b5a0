"""A module that runs the plans of another, one for each set of input sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from tersify.runtime.after_fork import Lock, make_torch_safe
from tersify.runtime.bound_network import Bound, agrees, bind
from tersify.runtime.call_keys import key_of_call, other_numbers
from tersify.runtime.capture import CannotCapture, Captured, Value, capture
from tersify.runtime.capture.randomness import numbers_kept
from tersify.runtime.check import UNWATCHED_TOLERANCE, differs_when_nobody_looks
from tersify.runtime.checksums import Unchanged, constants
from tersify.runtime.eager import Eager
from tersify.runtime.engine import Kernels
from tersify.runtime.fast_call import fast_call, nobody_looks_at, remember
from tersify.runtime.inputs import Arguments, check_inputs, explained, in_order
from tersify.runtime.nested import RebuildError, map_leaves
from tersify.runtime.op_profile import OpTime, profile
from tersify.runtime.plan import Plan
from tersify.runtime.planner import Planner
from tersify.runtime.torch_operator import number_of, watched
from tersify.runtime.transforms import refuse_indirect

MAX_SIZES = 64  # bound networks that are kept, the least recently used goes first


class CompiledModule(nn.Module):
    """Same arguments and results as the module it was compiled from, eval mode only, no
    gradients.

    For inputs of new sizes the module itself runs once, is captured, and its plan is
    compared with it.
    """

    def __init__(
        self, model: nn.Module, kernels: Kernels | None, precision: str, *, strict: bool
    ) -> None:
        super().__init__()
        self._source = (model,)  # in a tuple: it is no submodule
        self._kernels = kernels
        self._strict = strict
        self._planner = Planner(model, precision, kernels)
        self._eager = Eager(model)
        self._bounds: OrderedDict[Any, Bound] = OrderedDict()
        self._binding = Lock()
        self._first: Bound | None = None
        self._unchanged = Unchanged({})
        # tensors of the module that some size changes: all others read them anew
        self._state: tuple[Tensor, ...] = ()
        self._number = number_of(self)
        self._fast = None if kernels is None else fast_call(kernels.module)
        self.eval()

    @property
    def plan(self) -> Plan:
        """The plan for the sizes of the example."""
        assert self._first is not None
        return self._first.network.plan

    @property
    def threads(self) -> int:
        """How many threads the kernels use; one without kernels, where torch has its
        own.
        """
        return 1 if self._kernels is None else int(self._kernels.workspace.threads)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """nn.Module's own call takes as long as a small network, so it is skipped unless
        a hook or a mode needs it.
        """
        if not named and not torch.compiler.is_dynamo_compiling():
            self._unchanged.check()
            made = None if self._fast is None else self._fast(inputs, self.__dict__)
            if made is not None:
                return made
            known = self._known(inputs)
            if known is not None:
                return known.call(inputs)
        return super().__call__(*inputs, **named)

    def _known(self, inputs: tuple[Any, ...]) -> Bound | None:
        """The network that ran before for inputs like these; None if a hook or a mode
        must see the call, or an input is no plain tensor.
        """
        if not nobody_looks_at(self) or watched(inputs):
            return None
        for x in inputs:
            if (
                type(x) is not Tensor
                or not x.is_cpu
                or x.layout is not torch.strided
                or x.is_nested
            ):
                return None
        key = key_of_call(inputs, {})
        found = self._bounds.get(key)
        if found is None or found.looks_at_memory:
            return None
        with suppress(KeyError):  # another thread may just have dropped it
            self._bounds.move_to_end(key)
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(sorted(kwargs.items()))  # the order of keywords means nothing
        if not kwargs and all(isinstance(x, Tensor) for x in args) and watched(args):
            return self._as_operator(args)
        given = check_inputs(args, kwargs)
        make_torch_safe()
        bound = self._bound(args, kwargs, given)
        if bound.needs_the_module(given):
            with self._binding:
                return self._eager.run(args, kwargs)
        return bound.run(given) if bound.module is None else bound.call(args, kwargs)

    def weight_bytes(self) -> int:
        """Bytes of the packed weights that the kernels read."""
        assert self._first is not None
        return self._first.network.weight_bytes()

    def profile(self, *args: Any, repeats: int = 20, **kwargs: Any) -> list[OpTime]:
        """How long every operation of the plan takes with these inputs: the median of
        the repeats.
        """
        given = check_inputs(args, kwargs)
        make_torch_safe()
        bound = self._bound(args, kwargs, given)
        return profile(
            bound.network,
            [*bound.laid_out(given), *bound.graph.state.values()],
            repeats,
        )

    def start(self, example: Arguments, calibration: list[Arguments] | None) -> None:
        """Bind the sizes of the example; learn the ranges of int8 activations from the
        calibration batches.
        """
        args, kwargs = example
        given = check_inputs(args, kwargs)
        captured = self._captured(args, kwargs)
        if (
            differs_when_nobody_looks(self._source[0], args, kwargs, captured)
            > UNWATCHED_TOLERANCE
        ):
            raise ValueError(
                f"{type(self._source[0]).__name__} computes other things in a capture than without, so it cannot be "
                "compiled; look for torch's fast paths and for modes in its forward"
            )
        self._unchanged = Unchanged(constants(captured))
        if calibration is not None or self._planner.precision == "int8":
            self._planner.calibrate(
                [self._observation(batch) for batch in calibration or [example]]
            )
            # they may have shown that the module changes more than it did before
            captured = self._captured(args, kwargs)
        bound = self._bind(
            captured, [in_order(x) for x in given], key_of_call(args, kwargs)
        )
        self._first = bound
        remember(self._fast, bound, args, kwargs)
        self._choose_module(bound, captured, args, kwargs)
        self._check_other_numbers(args, kwargs, given)

    def _check_other_numbers(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Sequence[Tensor]
    ) -> None:
        """A forward that depends on numbers in ways that no operation shows would
        repeat those of the example.
        """
        others = iter([other_numbers(x) for x in given])
        replaced = map_leaves(
            (args, dict(kwargs)),
            lambda leaf: next(others) if isinstance(leaf, Tensor) else leaf,
        )
        try:
            captured = self._captured(*replaced)
        except CannotCapture:
            raise
        except ValueError:
            return  # the module does not take them
        assert self._first is not None
        if not agrees(self._first, captured, check_inputs(*replaced)):
            raise ValueError(
                f"{type(self._source[0]).__name__} computes other things for other numbers of the same sizes, so it "
                "cannot be compiled as a whole; compile the parts that do not depend on numbers"
            )

    def _observation(self, batch: Arguments) -> tuple[Any, list[Tensor]]:
        args, kwargs = batch
        try:
            graph = self._captured(args, kwargs).graph
        except ValueError as problem:
            raise ValueError(f"a calibration batch does not fit: {problem}") from None
        return graph, [
            *map(in_order, check_inputs(args, kwargs)),
            *graph.state.values(),
        ]

    def _bound(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Sequence[Tensor]
    ) -> Bound:
        self._unchanged.check()
        key = key_of_call(args, kwargs)
        found = self._bound_by(key, args, kwargs, given, keep_strides=False)
        if not found.depends_on_strides or all(in_order(x) is x for x in given):
            return found
        key = (key, *(x.stride() for x in given))
        return self._bound_by(key, args, kwargs, given, keep_strides=True)

    def _bound_by(
        self,
        key: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        given: Sequence[Tensor],
        *,
        keep_strides: bool,
    ) -> Bound:
        found = self._bounds.get(key)
        if found is not None:
            with suppress(KeyError):  # another thread may just have dropped it
                self._bounds.move_to_end(key)
            return found
        with self._binding, numbers_kept():
            found = self._bounds.get(key)
            if found is not None:
                return found
            captured = self._captured(args, kwargs, keep_strides=keep_strides)
            self._unchanged.check_all(captured)
            if keep_strides:
                return self._bind(captured, given, key)
            found = self._bind(captured, [in_order(x) for x in given], key)
            remember(self._fast, found, args, kwargs)
            self._choose_module(found, captured, args, kwargs)
            return found

    def _choose_module(
        self,
        bound: Bound,
        captured: Captured,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """The module runs instead of its plan where that is faster."""
        # Who asked for rounded numbers gets them, whatever they cost.
        rounds = self._planner.precision != "fp32"
        if rounds and not all(node.in_torch for node in bound.network.plan.nodes):
            return
        bound.module = self._eager.faster(
            bound, captured, args, kwargs, self._call_unseen
        )

    def _call_unseen(self, *args: Any, **kwargs: Any) -> Any:
        """A call that takes the user's way, but for hooks, which must not see it."""
        made = None
        if self._fast is not None and not kwargs:
            made = self._fast(args, self.__dict__)
        return self.forward(*args, **kwargs) if made is None else made

    def _bind(self, captured: Captured, given: Sequence[Tensor], key: Any) -> Bound:
        bound = bind(captured, given, self._planner, self._kernels, strict=self._strict)
        self._bounds[key] = bound
        if len(self._bounds) > MAX_SIZES:
            self._bounds.popitem(last=False)
        return bound

    def _captured(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        keep_strides: bool = False,
    ) -> Captured:
        model = self._source[0]
        try:
            captured = capture(
                model, args, kwargs, keep_strides=keep_strides, state=self._state
            )
        except (CannotCapture, RebuildError):
            raise
        except Exception as error:
            # anybody's forward: what it raises is not known here
            raise explained(model, check_inputs(args, kwargs), error) from error
        state = tuple(captured.graph.state.values())
        if len(state) > len(self._state):
            # Networks of other sizes took these tensors for constants.
            self._state = state
            self._unchanged.forget(state)
            self._bounds.clear()
            self._fast = (
                None if self._kernels is None else fast_call(self._kernels.module)
            )
        return captured

    def _as_operator(self, args: tuple[Any, ...]) -> Any:
        assert self._first is not None
        # dynamo does not know how to look, and has no such tensors
        if not torch.compiler.is_compiling():
            for x in args:
                refuse_indirect(x)
        made = torch.ops.tersify.run(list(args), self._number)
        return (
            made[0]
            if self._first.returns_one_tensor
            else self._first.like_the_module(made)
        )

    def run_flat(self, inputs: list[Tensor]) -> list[Tensor]:
        """For the operator: the tensors of the outputs in order."""
        make_torch_safe()
        bound = self._bound(tuple(inputs), {}, inputs)
        if bound.needs_the_module(inputs):
            raise ValueError(
                "the forward writes to memory that several inputs share, which no operator of torch may; give copies"
            )
        return bound.run_flat(inputs)

    def output_values(self, inputs: Sequence[Tensor]) -> list[Value]:
        """For the operator: the sizes and types of the outputs. A tracer has no numbers
        to capture with.
        """
        key = tuple((torch.Size(int(n) for n in x.shape), x.dtype) for x in inputs)
        found = self._bounds.get(key)
        if found is None:
            raise ValueError(
                "call the compiled network once with inputs of this size before you trace it"
            )
        if found.graph.written:
            # It could be moved, or left out where nobody reads its results.
            raise ValueError(
                "the forward writes to its inputs or buffers, which torch does not see in an operator; call the "
                "network outside of what is traced"
            )
        values = {
            **found.network.plan.values(),
            **{n: Value.of(t) for n, t in found.graph.constants.items()},
        }
        return [values[name] for name in found.network.plan.outputs]

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        raise TypeError(
            "a compiled network is packed for this CPU and can be neither copied nor pickled; save the network it was "
            "compiled from, and compile that again"
        )
