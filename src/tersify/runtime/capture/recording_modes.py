"""Modes of torch that watch a run and record it.

One sees every ATen operation, the other the few functions that are better kept whole
than as what torch makes of them. Since the sizes are real, so is every branch that
depends on them; a branch that depends on numbers is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tersify.runtime.capture.inplace import written_arguments
from tersify.runtime.capture.randomness import is_random
from tersify.runtime.capture.recorder import Recorder
from tersify.runtime.capture.refusal import refuse
from tersify.runtime.nested import tensors
from tersify.runtime.transforms import transforming

try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError as missing:
    raise ValueError(
        f"torch {torch.__version__} has no dispatch modes, by which compile captures a module"
    ) from missing

aten = torch.ops.aten

# Functions that are recorded as one operation: torch would make several of each, and
# the last ones many.
WHOLE: dict[Any, Any] = {
    F.linear: aten.linear.default,
    torch.matmul: aten.matmul.default,
    Tensor.matmul: aten.matmul.default,
    Tensor.__matmul__: aten.matmul.default,
    F.scaled_dot_product_attention: aten.scaled_dot_product_attention.default,
    torch.einsum: torch.einsum,
    torch.lstm: torch.lstm,
    torch.gru: torch.gru,
    torch.lstm_cell: torch.lstm_cell,
    torch.gru_cell: torch.gru_cell,
    torch.rnn_tanh: torch.rnn_tanh,
    torch.rnn_relu: torch.rnn_relu,
    F.one_hot: F.one_hot,  # torch looks whether the classes fit
}
_READS_NUMBERS = {
    Tensor.numpy,
    Tensor.tolist,
    Tensor.__array__,
    Tensor.data_ptr,
    Tensor.untyped_storage,
    Tensor.__dlpack__,
    Tensor.__repr__,
    Tensor.__format__,
    Tensor.__float__,
    Tensor.__int__,
    Tensor.__index__,
}
# They take numbers out of containers, and no operation shows it.
_FROM_CONTAINERS = {
    torch.tensor,
    torch.as_tensor,
    torch.asarray,
    Tensor.new_tensor,
    Tensor.new,
}
_SPLITS = {torch.tensor_split, Tensor.tensor_split}  # at numbers, or into so many
# Memory that holds whatever it held before.
_UNWRITTEN = {
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.empty_permuted.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}
# They give their argument back where its strides allow that, and a copy where not.
_COPIES_IF_NEEDED = {
    Tensor.contiguous,
    Tensor.reshape,
    Tensor.flatten,
    Tensor.ravel,
    Tensor.to,
    torch.reshape,
    torch.flatten,
    torch.ravel,
}
_READS_STRIDES = {Tensor.stride, Tensor.is_contiguous, Tensor.storage_offset}
_COMPARES_SIZES = (
    aten.is_same_size.default,
    getattr(aten, "_has_same_storage_numel", aten.is_same_size).default,
)
_REMEDY = "compile the parts before and after it, or write it with torch.where"


class _AtenMode(TorchDispatchMode):
    """Records every ATen operation that depends on an input."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.paused = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would otherwise import its compiler, which takes longer than the
        capture of most networks.
        """
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self.recorder
        # Inside a function that is recorded whole its parts are not recorded again.
        # "prim" operations only ask for properties such as the device, and sizes are
        # the same at every call.
        if self.paused or func.namespace == "prim" or func in _COMPARES_SIZES:
            return func(*args, **kwargs)
        recorder.generators.keep(kwargs)
        if func._schema.is_mutable or written_arguments(func, args, kwargs):
            return recorder.write(func, args, kwargs, lambda: func(*args, **kwargs))
        # `live`: some argument depends on an input. Everything else is a constant,
        # which is computed now, once.
        live = recorder.is_live((args, kwargs))
        if live:
            _refuse_sizes_from_numbers(recorder, func, args, kwargs)
        made = func(*args, **kwargs)
        if live and isinstance(made, (bool, int, float, complex)):
            # A Python number is frozen into the record, and a branch on it would hold
            # for the example only.
            raise refuse("the forward reads numbers of its input into Python", _REMEDY)
        random = is_random(func, args, kwargs)
        if live or random:
            recorder.random |= random
            recorder.record(func, args, kwargs, made)
        else:
            if func in _UNWRITTEN:
                made.zero_()  # so that two captures of one function are equal
            recorder.memory.keep_constant(made, tensors((args, kwargs)))
        return made


class _FunctionMode(TorchFunctionMode):
    """Keeps some functions whole, and refuses those that read numbers without an ATen
    operation.
    """

    def __init__(self, aten_mode: _AtenMode) -> None:
        super().__init__()
        self.aten_mode = aten_mode

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self.aten_mode.recorder
        if self.aten_mode.paused:
            return func(*args, **kwargs)
        if transforming():
            return self._transformed(func, args, kwargs)
        if _is_data_property(func):
            return self._data(func, args, kwargs)
        if not _is_hashable(func):  # none of those that are known here
            return func(*args, **kwargs)
        # Looking for live arguments walks through all of them, so only where it
        # matters.
        known = func in WHOLE or func in _READS_NUMBERS or func in _READS_STRIDES
        live = known and recorder.is_live((args, kwargs))
        if func in _FROM_CONTAINERS or func in _SPLITS:
            _refuse_constants_of_numbers(recorder, func, args, kwargs)
        if func in _READS_NUMBERS and live:
            raise refuse(
                f"the forward calls {func.__name__}() on numbers of its input", _REMEDY
            )
        if func in _READS_STRIDES and live:
            recorder.reads_strides(func.__name__)
        if func not in WHOLE or not live or _needs_its_parts(func, args, kwargs):
            made = func(*args, **kwargs)
            # No operation shows that nothing was copied, so it is noted here.
            if func in _COPIES_IF_NEEDED and made is args[0]:
                recorder.returned_itself(made)
            return made
        # Counted, because such functions may call each other.
        self.aten_mode.paused += 1
        try:
            made = func(*args, **kwargs)
        finally:
            self.aten_mode.paused -= 1
        recorder.random |= is_random(WHOLE[func], args, kwargs)
        recorder.record(WHOLE[func], args, kwargs, made)
        return made

    def _transformed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Inside torch.func tensors are wrapped, and a wrapper has no memory to look
        at. What torch makes of them is seen as operations on what they wrap.
        """
        known = _is_hashable(func)
        if _is_data_property(func) or (known and func in _READS_NUMBERS):
            raise refuse(
                "the forward looks behind torch.func (vmap, grad) at the memory of a tensor",
                "compile the parts before and after it, or use detach()",
            )
        if known and (func in _COPIES_IF_NEEDED or func in _READS_STRIDES):
            self.aten_mode.recorder.reads_strides(func.__name__)
        return func(*args, **kwargs)

    def _data(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`.data` shares memory behind torch's back."""
        recorder = self.aten_mode.recorder
        if func.__name__ != "__get__":
            if recorder.is_live((args, kwargs)):
                raise refuse("the forward assigns to .data", "use copy_ instead")
            return func(*args, **kwargs)
        made = func(*args, **kwargs)
        if isinstance(made, Tensor) and recorder.is_live(args):
            # `.data` runs no operation. Recorded as `detach`, it shares memory as it
            # does in torch.
            recorder.record(aten.detach.default, args[:1], {}, made)
        return made


def watch(recorder: Recorder, run: Callable[[], Any]) -> Any:
    """What `run` returns, with everything it does in the record."""
    aten_mode = _AtenMode(recorder)
    with torch.no_grad(), aten_mode, _FunctionMode(aten_mode):
        return run()


def _refuse_sizes_from_numbers(
    recorder: Recorder, func: Any, args: Any, kwargs: Any
) -> None:
    if torch.Tag.dynamic_output_shape not in func.tags:
        return
    if func in (aten.index.Tensor, aten._unsafe_index.Tensor):
        # An index of integers gives as many results as it has entries. Only a mask
        # makes the size depend on numbers.
        masks = [t for t in tensors(args[1:]) if t.dtype in (torch.bool, torch.uint8)]
        if not masks or not recorder.is_live(masks):
            return
    raise refuse("the size of a tensor depends on the numbers of the input", _REMEDY)


def _refuse_constants_of_numbers(
    recorder: Recorder, func: Any, args: Any, kwargs: Any
) -> None:
    """A tensor given as it is stays what it is; numbers inside of a container are read."""
    given = [*args, *kwargs.values()]
    if func in _SPLITS and recorder.is_live(given[1:]):
        raise refuse(
            "the size of a tensor depends on the numbers of the input", _REMEDY
        )
    inside = [x for x in given if not isinstance(x, Tensor)]
    if func in _FROM_CONTAINERS and recorder.is_live(inside):
        raise refuse(
            f"the forward reads numbers of its input into Python, by {func.__name__}() of a container",
            "use torch.stack or torch.cat",
        )


def _needs_its_parts(func: Any, args: Any, kwargs: Any) -> bool:
    """Autocast casts what a function calls, and without a number of classes their
    highest one decides a size.
    """
    if func is F.one_hot:
        # −1 is torch's default: the classes are counted from the numbers.
        return (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1
    return torch.is_autocast_enabled("cpu")


def _is_hashable(func: Any) -> bool:
    try:
        hash(func)
    except TypeError:
        return False
    return True


def _is_data_property(func: Any) -> bool:
    return getattr(func, "__self__", None) is Tensor.data
