"""The record of one run of a module: what was called on which values, without side
effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.capture.inplace import functional_form, written_arguments
from tersify.runtime.capture.memory import Memory, storage_id
from tersify.runtime.capture.randomness import Generators, is_random
from tersify.runtime.capture.refusal import refuse
from tersify.runtime.capture.shared_memory import Geometry, Storage
from tersify.runtime.capture.values import Call, Ref, Value
from tersify.runtime.nested import map_leaves, tensors

aten = torch.ops.aten
# What `reshape` and `flatten` call: where the strides do not allow a view, they copy
# first.
_VIEWS_IF_THEY_CAN = (aten.view.default, aten._unsafe_view.default)


class Recorder:
    """The record of one run."""

    def __init__(self, owned: Mapping[str, Tensor]) -> None:
        self.calls: list[Call] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Tensor] = {}
        # tensors of the module that the run changes
        self.mutated: dict[int, Tensor] = {}
        self.saved: list[tuple[Tensor, Tensor]] = []  # and what they held before
        self.random = False
        self.generators = Generators()
        self.depends_on_strides = False
        self.strides_read_by = ""  # the first call that looks at them
        # of the module's parameters and buffers
        self._names = {id(t): name for name, t in owned.items()}
        self._owners = {storage_id(t): t for t in reversed(list(owned.values()))}
        self.memory = Memory()
        self._used: dict[str, int] = {}

    def add_live(self, tensor: Tensor, name: str) -> None:
        """A tensor whose numbers differ from call to call, and so does whatever shares
        its memory.
        """
        self.values[name] = Value.of(tensor)
        self._used[name] = 0
        self.memory.add_live(tensor, name)

    def owns(self, tensor: Tensor) -> bool:
        """Whether it is a parameter or a buffer of the module."""
        return id(tensor) in self._names

    def is_live(self, arguments: Any) -> bool:
        return any(self.memory.entry(t).storage.live for t in tensors(arguments))

    def current(self, tensor: Tensor) -> str:
        """The name of the value that the tensor has now; a constant becomes a value by
        being used.
        """
        # The memory may have been written through another tensor since this name was
        # given; then the view is read anew.
        entry = self.memory.entry(tensor)
        if entry.name is None or entry.version != entry.storage.version:
            live = entry.storage.live
            entry.name = (
                entry.storage.read(entry.geometry, self._emit)
                if live
                else self._new_constant(tensor)
            )
        entry.version = entry.storage.version
        return entry.name

    def record(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """`made` came of calling `func`, which changes nothing."""
        inputs = list(tensors((args, kwargs)))
        if func is aten.as_strided.default:  # it reads memory, not a value
            storage = self.memory.entry(inputs[0]).storage
            self.reads_strides("as_strided")
            self.memory.track(
                made, storage, storage.read(Geometry.of(made), self._emit)
            )
            return
        results = []
        call_args, call_kwargs = self._with_refs(args), self._with_refs(kwargs)
        for tensor in tensors(made):
            name = self._new_name(func)
            results.append(name)
            self.values[name] = Value.of(tensor)
            # An operation that returns its argument makes no new tensor to track.
            if any(tensor is given for given in inputs):
                continue
            # A view shares memory with an argument: a later write to either reaches
            # both.
            storage = self.memory.shared(tensor, inputs) or Storage(
                Geometry.of(tensor), name, live=True
            )
            if func in _VIEWS_IF_THEY_CAN or _puts_in_order(func, kwargs):
                storage.laid_out_by_chance = self.memory.entry(
                    inputs[0]
                ).storage.laid_out_by_chance = True
            self.memory.track(tensor, storage, name)
        self.calls.append(
            Call(
                target=func, args=call_args, kwargs=call_kwargs, results=tuple(results)
            )
        )

    def returned_itself(self, tensor: Tensor) -> None:
        """A function gave its argument back; with other strides it would have made a
        copy.
        """
        self.memory.entry(tensor).storage.laid_out_by_chance = True

    def reads_strides(self, name: str) -> None:
        """With inputs laid out otherwise this call would do something else."""
        self.depends_on_strides = True
        self.strides_read_by = self.strides_read_by or name

    def before_write(self, written: Tensor, *, live: bool) -> None:
        """Memory is about to change: what was read of it before must stay as it was."""
        entry = self.memory.entry(written)
        if entry.storage.live:
            return
        # Memory of the module is state, and its old numbers are saved. Of memory that
        # this run made as a constant, constants that were read before keep a copy; with
        # a live value written it becomes live itself.
        key = storage_id(written)
        if not self.memory.is_made_here(written):
            if key not in self.mutated:
                self.mutated[key] = self._owners.get(key, written)
                self.saved.append(
                    (self.mutated[key], self.mutated[key].detach().clone())
                )
            return
        for name, constant in self.constants.items():
            if storage_id(constant) == key:
                self.constants[name] = constant.clone()
        if live:
            whole = _whole(written)
            entry.storage.become_live(
                Geometry.of(whole), self._new_constant(whole.clone())
            )

    def write(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """An operation that changes some of its arguments; in the record their new
        values are its results.
        """
        written = written_arguments(func, args, kwargs)
        random = is_random(func, args, kwargs)
        self.random |= random
        # Random numbers differ from call to call, as inputs do.
        live = self.is_live((args, kwargs)) or random
        for tensor in written:
            if live and (
                Geometry.of(tensor).is_expanded
                or self.memory.entry(tensor).storage.base.is_expanded
            ):
                raise refuse(
                    "the forward writes to a tensor whose numbers share memory",
                    "call .contiguous() before",
                )
            if self.memory.entry(tensor).storage.laid_out_by_chance:
                self.reads_strides(func._schema.name.split("::")[1])
            self.before_write(tensor, live=live)
        # Constants written by constants stay so; the version tells older views to read.
        if not live:
            made = run()
            for tensor in written:
                self.memory.entry(tensor).storage.version += 1
            self.memory.keep_constant(made, tensors((args, kwargs)))
            return made
        target, taken, called = functional_form(func, args, kwargs, written)
        call_args, call_kwargs = self._with_refs(taken), self._with_refs(called)
        # Arguments were named before the run: afterwards the same tensors hold their
        # new values.
        results = [self._new_name(func) for _ in written]
        made = run()
        # Such as what a batch norm returns while it changes its statistics.
        fresh = [t for t in tensors(made) if not any(t is own for own in written)]
        results += [self._new_name(func) for _ in fresh]
        self.calls.append(
            Call(
                target=target,
                args=call_args,
                kwargs=call_kwargs,
                results=tuple(results),
            )
        )
        for tensor, name in zip(fresh, results[len(written) :], strict=True):
            self.values[name] = Value.of(tensor)
            self.memory.track(
                tensor, Storage(Geometry.of(tensor), name, live=True), name
            )
        for tensor, name in zip(written, results, strict=False):
            entry = self.memory.entry(tensor)
            self.values[name] = Value.of(tensor)
            try:
                entry.storage.write(entry.geometry, name)
            except ValueError as problem:
                raise refuse(
                    f"{func} cannot be captured: {problem}",
                    "write it without views of another type",
                ) from None
            entry.name, entry.version = name, entry.storage.version
        return made

    def _with_refs(self, arguments: Any) -> Any:
        return map_leaves(
            arguments,
            lambda leaf: Ref(self.current(leaf)) if isinstance(leaf, Tensor) else leaf,
        )

    def _new_constant(self, tensor: Tensor) -> str:
        known = self._names.get(id(tensor))
        name = self._unique(known.replace(".", "_") if known else "constant")
        self.constants[name] = tensor.detach()
        self.values[name] = Value.of(tensor)
        return name

    def _emit(
        self,
        target: Any,
        inputs: tuple[str, ...],
        more: Any,
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> str:
        name = self._new_name(target)
        self.values[name] = Value(shape=shape, dtype=dtype)
        arguments = (*(Ref(i) for i in inputs), *more)
        self.calls.append(
            Call(target=target, args=arguments, kwargs={}, results=(name,))
        )
        return name

    def _new_name(self, func: Any) -> str:
        schema = getattr(func, "_schema", None)
        return self._unique(
            schema.name.split("::")[1].strip("_") if schema else func.__name__
        )

    def _unique(self, base: str) -> str:
        count = self._used.get(base, -1) + 1
        self._used[base] = count
        # A counted name may collide with a parameter that is really called so.
        name = f"{base}_{count}" if count else base
        if count and name in self._used:
            return self._unique(base)
        self._used.setdefault(name, 0)
        return name


def _puts_in_order(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """A copy that `contiguous`, `to` and `reshape` make only where the numbers are not
    in that order.
    """
    order = kwargs.get("memory_format") or torch.preserve_format
    return (
        func in (aten.clone.default, aten._to_copy.default)
        and order is not torch.preserve_format
    )


def _whole(tensor: Tensor) -> Tensor:
    """All of a tensor's memory, in one row."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    return tensor.as_strided((count,), (1,), 0)
