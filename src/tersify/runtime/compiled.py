"""A module that runs the plans of another, one for each set of input sizes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from tersify.runtime.after_fork import make_torch_safe
from tersify.runtime.bound_network import Bound
from tersify.runtime.call_keys import key_of_call
from tersify.runtime.capture import Value
from tersify.runtime.engine import Kernels
from tersify.runtime.fast_call import nobody_looks_at
from tersify.runtime.inputs import (
    Arguments,
    check_inputs,
    sees_the_order_of_keywords,
)
from tersify.runtime.op_profile import OpTime, profile
from tersify.runtime.plan import Plan
from tersify.runtime.sizes import Sizes
from tersify.runtime.torch_operator import number_of, watched
from tersify.runtime.transforms import refuse_indirect


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
        # One that held this method would be freed late.
        call = weakref.WeakMethod(self._call_unseen)
        self._sizes = Sizes(
            model,
            kernels,
            precision,
            lambda *args, **kwargs: call()(*args, **kwargs),  # type: ignore[misc]
            strict=strict,
        )
        self._number = number_of(self)
        self._any_order = not sees_the_order_of_keywords(model)
        self.eval()

    def start(self, example: Arguments, calibration: list[Arguments] | None) -> None:
        """Bind the sizes of the example; learn the ranges of int8 activations from the
        calibration batches.
        """
        batches = calibration and [(args, self._named(k)) for args, k in calibration]
        self._sizes.start((example[0], self._named(example[1])), batches)

    @property
    def plan(self) -> Plan:
        """The plan for the sizes of the example."""
        return self._sizes.first.network.plan

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
            sizes = self._sizes
            sizes.unchanged.check()
            made = None if sizes.fast is None else sizes.fast(inputs, self.__dict__)
            if made is not None:
                return made
            known = self._known(inputs)
            if known is not None:
                return known.call(inputs)
        return super().__call__(*inputs, **named)

    def _known(self, inputs: tuple[Any, ...]) -> Bound | None:
        """The network that ran before for inputs like these; None if a hook or a mode
        must see the call, or an input is no plain tensor, or is given twice.
        """
        if not nobody_looks_at(self) or watched(inputs):
            return None
        if len(set(map(id, inputs))) < len(inputs):
            return None
        for x in inputs:
            if (
                type(x) is not Tensor
                or not x.is_cpu
                or x.layout is not torch.strided
                or x.is_nested
                or vars(x)
            ):
                return None
        found = self._sizes.known(key_of_call(inputs, {}))
        if found is None or found.looks_at_memory or found.minds_strides:
            return None
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = self._named(kwargs)
        if not kwargs and all(isinstance(x, Tensor) for x in args) and watched(args):
            return self._as_operator(args)
        given = check_inputs(args, kwargs)
        make_torch_safe()
        bound = self._sizes.bound(args, kwargs, given)
        if bound.needs_the_module(given):
            return self._sizes.run_module(args, kwargs)
        return bound.run(given) if bound.module is None else bound.call(args, kwargs)

    def _named(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """In one order, where the forward does not see it."""
        return dict(sorted(kwargs.items()) if self._any_order else kwargs)

    def weight_bytes(self) -> int:
        """Bytes of the packed weights that the kernels read."""
        return self._sizes.first.network.weight_bytes()

    def profile(self, *args: Any, repeats: int = 20, **kwargs: Any) -> list[OpTime]:
        """How long every operation of the plan takes with these inputs: the median of
        the repeats.
        """
        given = check_inputs(args, kwargs)
        make_torch_safe()
        bound = self._sizes.bound(args, kwargs, given)
        return profile(
            bound.network,
            [*bound.laid_out(given), *bound.graph.state.values()],
            repeats,
        )

    def _call_unseen(self, *args: Any, **kwargs: Any) -> Any:
        """A call that takes the user's way, but for hooks, which must not see it."""
        made = None
        if self._sizes.fast is not None and not kwargs:
            made = self._sizes.fast(args, self.__dict__)
        return self.forward(*args, **kwargs) if made is None else made

    def _as_operator(self, args: tuple[Any, ...]) -> Any:
        # dynamo does not know how to look, and has no such tensors
        if not torch.compiler.is_compiling():
            for x in args:
                refuse_indirect(x)
        made = torch.ops.tersify.run(list(args), self._number)
        return (
            made[0]
            if self._sizes.first.returns_one_tensor
            else self._sizes.first.like_the_module(made)
        )

    def run_flat(self, inputs: list[Tensor]) -> list[Tensor]:
        """For the operator: the tensors of the outputs in order."""
        make_torch_safe()
        bound = self._sizes.bound(tuple(inputs), {}, inputs)
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
        found = self._sizes.bounds.get(key)
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
