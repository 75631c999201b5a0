"""Run a module once on real tensors and record what it does, as calls without side effects.

Two modes of torch watch the run: one sees every ATen operation, the other the few functions that are better kept whole
than as what torch makes of them. Since the sizes are real, so is every branch that depends on them; a branch that
depends on numbers is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tersify.runtime.capture.inplace import functional_form, written_arguments
from tersify.runtime.capture.refusal import refuse
from tersify.runtime.capture.storage import Geometry, Storage
from tersify.runtime.capture.values import Call, Ref, Value
from tersify.runtime.nested import map_leaves, tensors

aten = torch.ops.aten

# Functions that are recorded as one operation: torch would make several of each, and the last ones many.
WHOLE: dict[Any, Any] = {
    F.linear: aten.linear.default,
    torch.matmul: aten.matmul.default,
    Tensor.matmul: aten.matmul.default,
    Tensor.__matmul__: aten.matmul.default,
    F.scaled_dot_product_attention: aten.scaled_dot_product_attention.default,
    torch.einsum: torch.einsum,
    torch.lstm: torch.lstm,
    torch.gru: torch.gru,
    torch.rnn_tanh: torch.rnn_tanh,
    torch.rnn_relu: torch.rnn_relu,
}
_READS_NUMBERS = {
    Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.data_ptr, Tensor.untyped_storage, Tensor.__dlpack__
}  # fmt: skip
_REMEDY = "compile the parts before and after it, or write it with torch.where"


class Entry:
    """A tensor of the run: its memory, where in it, and the value it had at a version of that memory."""

    __slots__ = ("geometry", "name", "storage", "tensor", "version")

    def __init__(self, tensor: Tensor, storage: Storage, name: str | None) -> None:
        self.tensor = weakref.ref(tensor)
        self.storage = storage
        self.geometry = Geometry.of(tensor)
        self.name = name
        self.version = storage.version


class Recorder:
    """The record of one run."""

    def __init__(self, owned: Mapping[str, Tensor]) -> None:
        self.calls: list[Call] = []
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Tensor] = {}
        self.mutated: dict[int, Tensor] = {}  # tensors of the module that the run changes
        self.saved: list[tuple[Tensor, Tensor]] = []  # and what they held before
        self.random = False
        self._names = {id(t): name for name, t in owned.items()}  # of the module's parameters and buffers
        self._owners = {_storage_id(t): t for t in reversed(list(owned.values()))}
        self._entries: dict[int, Entry] = {}
        self._outside: dict[int, tuple[Storage, Tensor]] = {}  # memory that was there before the run, or is constant
        self._made_here: dict[int, Tensor] = {}  # constants that the run itself made, by storage
        self._used: dict[str, int] = {}

    def add_live(self, tensor: Tensor, name: str) -> None:
        """A tensor whose numbers differ from call to call, and so does whatever shares its memory."""
        self.values[name] = Value.of(tensor)
        self._used[name] = 0
        storage = Storage(Geometry.of(tensor), name, live=True)
        self._outside[_storage_id(tensor)] = (storage, tensor)
        self._track(tensor, storage, name)

    def is_live(self, arguments: Any) -> bool:
        return any(self._entry(t).storage.live for t in tensors(arguments))

    def current(self, tensor: Tensor) -> str:
        """The name of the value that the tensor has now; a constant becomes a value by being used."""
        entry = self._entry(tensor)
        if entry.name is None or entry.version != entry.storage.version:
            live = entry.storage.live
            entry.name = entry.storage.read(entry.geometry, self._emit) if live else self._new_constant(tensor)
        entry.version = entry.storage.version
        return entry.name

    def record(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """`made` came of calling `func`, which changes nothing."""
        inputs = list(tensors((args, kwargs)))
        if func is aten.as_strided.default:  # it reads memory, not a value
            storage = self._entry(inputs[0]).storage
            self._track(made, storage, storage.read(Geometry.of(made), self._emit))
            return
        results = []
        call_args, call_kwargs = self._with_refs(args), self._with_refs(kwargs)
        for tensor in tensors(made):
            name = self._new_name(func)
            results.append(name)
            self.values[name] = Value.of(tensor)
            if any(tensor is given for given in inputs):
                continue
            shared = self._shared_storage(tensor, inputs)
            self._track(tensor, shared or Storage(Geometry.of(tensor), name, live=True), name)
        self.calls.append(Call(target=func, args=call_args, kwargs=call_kwargs, results=tuple(results)))

    def keep_constant(self, made: Any, inputs: Iterable[Tensor]) -> None:
        """What depends on no input stays what it is; memory made by this run is remembered as such."""
        given = {_storage_id(t) for t in inputs}
        for tensor in tensors(made):
            if _storage_id(tensor) not in given:
                self._made_here[_storage_id(tensor)] = tensor

    def before_write(self, written: Tensor, *, live: bool) -> None:
        """Memory is about to change: what was read of it before must stay as it was."""
        entry = self._entry(written)
        if entry.storage.live:
            return
        key = _storage_id(written)
        if key not in self._made_here:
            if key not in self.mutated:
                self.mutated[key] = self._owners.get(key, written)
                self.saved.append((self.mutated[key], self.mutated[key].detach().clone()))
            return
        for name, constant in self.constants.items():
            if _storage_id(constant) == key:
                self.constants[name] = constant.clone()
        if live:
            whole = _whole(written)
            entry.storage.become_live(Geometry.of(whole), self._new_constant(whole.clone()))

    def write(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        """An operation that changes some of its arguments; in the record their new values are its results."""
        written = written_arguments(func, args, kwargs)
        live = self.is_live((args, kwargs)) or _is_random(func)
        for tensor in written:
            self.before_write(tensor, live=live)
        if not live:
            made = run()
            for tensor in written:
                self._entry(tensor).storage.version += 1
            self.keep_constant(made, tensors((args, kwargs)))
            return made
        target, taken, called = functional_form(func, args, kwargs, written)
        call_args, call_kwargs = self._with_refs(taken), self._with_refs(called)
        results = [self._new_name(func) for _ in written]
        made = run()
        self.calls.append(Call(target=target, args=call_args, kwargs=call_kwargs, results=tuple(results)))
        for tensor, name in zip(written, results, strict=True):
            entry = self._entry(tensor)
            self.values[name] = Value.of(tensor)
            try:
                entry.storage.write(entry.geometry, name)
            except ValueError as problem:
                raise refuse(
                    f"{func} cannot be captured: {problem}", "write it without views of another type"
                ) from None
            entry.name, entry.version = name, entry.storage.version
        return made

    def _with_refs(self, arguments: Any) -> Any:
        return map_leaves(arguments, lambda leaf: Ref(self.current(leaf)) if isinstance(leaf, Tensor) else leaf)

    def _entry(self, tensor: Tensor) -> Entry:
        known = self._entries.get(id(tensor))
        if known is not None and known.tensor() is tensor:
            return known
        key = _storage_id(tensor)
        if key not in self._outside:
            self._outside[key] = (Storage(Geometry.of(tensor), None, live=False), tensor)
        return self._track(tensor, self._outside[key][0], None)

    def _track(self, tensor: Tensor, storage: Storage, name: str | None) -> Entry:
        entry = self._entries[id(tensor)] = Entry(tensor, storage, name)
        return entry

    def _shared_storage(self, tensor: Tensor, inputs: Iterable[Tensor]) -> Storage | None:
        key = _storage_id(tensor)
        return next((self._entry(t).storage for t in inputs if _storage_id(t) == key), None)

    def _new_constant(self, tensor: Tensor) -> str:
        known = self._names.get(id(tensor))
        name = self._unique(known.replace(".", "_") if known else "constant")
        self.constants[name] = tensor.detach()
        self.values[name] = Value.of(tensor)
        return name

    def _emit(self, target: Any, inputs: tuple[str, ...], more: Any, shape: tuple[int, ...], dtype: torch.dtype) -> str:
        name = self._new_name(target)
        self.values[name] = Value(shape=shape, dtype=dtype)
        arguments = (*(Ref(i) for i in inputs), *more)
        self.calls.append(Call(target=target, args=arguments, kwargs={}, results=(name,)))
        return name

    def _new_name(self, func: Any) -> str:
        schema = getattr(func, "_schema", None)
        return self._unique(schema.name.split("::")[1].strip("_") if schema else func.__name__)

    def _unique(self, base: str) -> str:
        count = self._used.get(base, -1) + 1
        self._used[base] = count
        name = f"{base}_{count}" if count else base
        if count and name in self._used:
            return self._unique(base)
        self._used.setdefault(name, 0)
        return name


class _AtenMode(TorchDispatchMode):
    """Records every ATen operation that depends on an input."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.paused = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self.recorder
        if self.paused or func.namespace == "prim":
            return func(*args, **kwargs)
        if func._schema.is_mutable or written_arguments(func, args, kwargs):
            return recorder.write(func, args, kwargs, lambda: func(*args, **kwargs))
        live = recorder.is_live((args, kwargs))
        if live:
            _refuse_sizes_from_numbers(recorder, func, args, kwargs)
        made = func(*args, **kwargs)
        if live and isinstance(made, (bool, int, float, complex)) and func is not aten.is_same_size.default:
            raise refuse("the forward reads numbers of its input into Python", _REMEDY)
        if live or _is_random(func):
            recorder.random |= _is_random(func)
            recorder.record(func, args, kwargs, made)
        else:
            recorder.keep_constant(made, tensors((args, kwargs)))
        return made


class _FunctionMode(TorchFunctionMode):
    """Keeps some functions whole, and refuses those that read numbers without an ATen operation."""

    def __init__(self, aten_mode: _AtenMode) -> None:
        super().__init__()
        self.aten_mode = aten_mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self.aten_mode.recorder
        if self.aten_mode.paused:
            return func(*args, **kwargs)
        if _is_data_property(func):
            return self._data(func, args, kwargs)
        try:
            whole = WHOLE.get(func)
            reads = func in _READS_NUMBERS
        except TypeError:  # not hashable, so neither
            whole, reads = None, False
        if reads and recorder.is_live((args, kwargs)):
            raise refuse(f"the forward calls {func.__name__}() on numbers of its input", _REMEDY)
        if whole is None or not recorder.is_live((args, kwargs)):
            return func(*args, **kwargs)
        self.aten_mode.paused += 1
        try:
            made = func(*args, **kwargs)
        finally:
            self.aten_mode.paused -= 1
        recorder.record(whole, args, kwargs, made)
        return made

    def _data(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`.data` shares memory behind torch's back."""
        recorder = self.aten_mode.recorder
        if func.__name__ != "__get__":
            if recorder.is_live((args, kwargs)):
                raise refuse("the forward assigns to .data", "use copy_ instead")
            return func(*args, **kwargs)
        made = func(*args, **kwargs)
        if isinstance(made, Tensor) and recorder.is_live(args):
            recorder.record(aten.detach.default, args[:1], {}, made)
        return made


def watch(recorder: Recorder, run: Callable[[], Any]) -> Any:
    """What `run` returns, with everything it does in the record."""
    aten_mode = _AtenMode(recorder)
    with torch.no_grad(), aten_mode, _FunctionMode(aten_mode):
        return run()


def _refuse_sizes_from_numbers(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> None:
    if torch.Tag.dynamic_output_shape not in func.tags:
        return
    if func in (aten.index.Tensor, aten._unsafe_index.Tensor):
        masks = [t for t in tensors(args[1:]) if t.dtype in (torch.bool, torch.uint8)]
        if not masks or not recorder.is_live(masks):
            return
    raise refuse("the size of a tensor depends on the numbers of the input", _REMEDY)


def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def _is_data_property(func: Any) -> bool:
    return getattr(func, "__self__", None) is Tensor.data


def _storage_id(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _whole(tensor: Tensor) -> Tensor:
    """All of a tensor's memory, in one row."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    return tensor.as_strided((count,), (1,), 0)
