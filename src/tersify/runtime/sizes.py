"""The networks of one module, each bound to the sizes of a call that it has seen."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tersify.runtime.after_fork import CallsItselfError, Lock
from tersify.runtime.bound_network import Bound, agrees, bind
from tersify.runtime.call_keys import key_of_call, other_numbers
from tersify.runtime.capture import CannotCapture, Captured, capture
from tersify.runtime.capture.randomness import numbers_kept
from tersify.runtime.check import UNWATCHED_TOLERANCE, differs_when_nobody_looks
from tersify.runtime.checksums import Unchanged, constants
from tersify.runtime.eager import Eager
from tersify.runtime.engine import Kernels
from tersify.runtime.fast_call import fast_call, remember
from tersify.runtime.inputs import Arguments, check_inputs, explained, in_order
from tersify.runtime.nested import RebuildError, map_leaves, tensors
from tersify.runtime.planner import Planner

MAX_SIZES = 64  # bound networks that are kept, the least recently used goes first


class Sizes:
    """Finds the network for a call, or binds one: the module itself runs once, is
    captured, and its plan is compared with it.

    `call` runs a network in the user's way, for whoever times it.
    """

    def __init__(
        self,
        model: nn.Module,
        kernels: Kernels | None,
        precision: str,
        call: Callable[..., Any],
        *,
        strict: bool,
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._strict = strict
        self._call = call
        self._planner = Planner(model, precision, kernels)
        self._eager = Eager(model)
        self.bounds: OrderedDict[Any, Bound] = OrderedDict()
        self._binding = Lock()
        self._first: Bound | None = None
        self.unchanged = Unchanged({})
        # tensors of the module that some size changes: all others read them anew
        self._state: tuple[Tensor, ...] = ()
        self.fast = self._nothing_fast()

    @property
    def first(self) -> Bound:
        """Of the example."""
        assert self._first is not None
        return self._first

    def _nothing_fast(self) -> Any:
        return None if self._kernels is None else fast_call(self._kernels.module)

    def known(self, key: Any) -> Bound | None:
        found = self.bounds.get(key)
        if found is not None:
            with suppress(KeyError):  # another thread may just have dropped it
                self.bounds.move_to_end(key)
        return found

    def run_module(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The module itself, by one thread at a time: it is put into eval mode."""
        with self._binding:
            return self._eager.run(args, kwargs)

    def start(self, example: Arguments, calibration: list[Arguments] | None) -> None:
        """Bind the sizes of the example; learn the ranges of int8 activations from the
        calibration batches.
        """
        args, kwargs = example
        given = check_inputs(args, kwargs)
        captured = self._captured(args, kwargs)
        if (
            differs_when_nobody_looks(self._model, args, kwargs, captured)
            > UNWATCHED_TOLERANCE
        ):
            raise ValueError(
                f"{type(self._model).__name__} computes other things in a capture than without, so it cannot be "
                "compiled; look for torch's fast paths and for modes in its forward"
            )
        self.unchanged = Unchanged(constants(captured))
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
        remember(self.fast, bound, args, kwargs)
        self._choose_module(bound, captured, args, kwargs)
        self._check_other_numbers(args, kwargs, given)

    def _check_other_numbers(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Sequence[Tensor]
    ) -> None:
        """A forward that depends on numbers in ways that no operation shows would
        repeat those of the example.
        """
        # Not every module takes every integer and every mask.
        for changed in ((None, torch.bool), (None,), (torch.bool,), ()):
            others = {id(x): other_numbers(x, changed) for x in given}
            replaced = map_leaves((args, dict(kwargs)), partial(_replaced, others), {})
            try:
                captured = self._captured(*replaced)
            except CannotCapture:
                raise
            except ValueError:
                continue  # the module does not take them
            if not agrees(self.first, captured, check_inputs(*replaced)):
                raise ValueError(
                    f"{type(self._model).__name__} computes other things for other numbers of the same sizes, so it "
                    "cannot be compiled as a whole; compile the parts that do not depend on numbers"
                )
            return

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

    def bound(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Sequence[Tensor]
    ) -> Bound:
        self.unchanged.check()
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
        found = self.known(key)
        if found is not None:
            return found
        with self._binding, numbers_kept():
            found = self.bounds.get(key)
            if found is not None:
                return found
            captured = self._captured(args, kwargs, keep_strides=keep_strides)
            self.unchanged.check_all(captured)
            if keep_strides:
                return self._bind(captured, given, key)
            found = self._bind(captured, [in_order(x) for x in given], key)
            remember(self.fast, found, args, kwargs)
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
        if bound.is_entangled:
            bound.module = self._eager.twin
            return
        # Who asked for rounded numbers gets them, whatever they cost.
        rounds = self._planner.precision != "fp32"
        if rounds and not all(node.in_torch for node in bound.network.plan.nodes):
            return
        bound.module = self._eager.faster(bound, captured, args, kwargs, self._call)

    def _bind(self, captured: Captured, given: Sequence[Tensor], key: Any) -> Bound:
        bound = bind(captured, given, self._planner, self._kernels, strict=self._strict)
        self.bounds[key] = bound
        if len(self.bounds) > MAX_SIZES:
            self.bounds.popitem(last=False)
        return bound

    def _captured(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        keep_strides: bool = False,
    ) -> Captured:
        try:
            captured = capture(
                self._model, args, kwargs, keep_strides=keep_strides, state=self._state
            )
        except (CannotCapture, RebuildError, CallsItselfError):
            raise
        except Exception as error:
            # anybody's forward: what it raises is not known here
            raise explained(self._model, tensors((args, kwargs)), error) from error
        state = tuple(captured.graph.state.values())
        if len(state) > len(self._state):
            # Networks of other sizes took these tensors for constants.
            self._state = state
            self.unchanged.forget(state)
            self.bounds.clear()
            self.fast = self._nothing_fast()
        return captured


def _replaced(others: Mapping[int, Tensor], leaf: Any) -> Any:
    return others[id(leaf)] if isinstance(leaf, Tensor) else leaf
