"""The operations that a stored graph may name: arithmetic on tensors and sizes, and
nothing else.

A file from elsewhere chooses among these alone. None reads a file, writes to its
arguments or calls back.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LISTED = """
conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d
linear matmul mm bmm addmm baddbmm mv dot outer
batch_norm instance_norm group_norm layer_norm rms_norm native_layer_norm native_group_norm
relu relu6 gelu silu mish elu celu selu leaky_relu prelu hardtanh hardswish hardsigmoid sigmoid tanh softplus
log_sigmoid threshold glu softmax log_softmax hardshrink softshrink
add sub rsub mul div true_divide floor_divide remainder fmod pow square sqrt rsqrt reciprocal exp exp2 expm1 log log2
log10 log1p abs neg sign floor ceil round trunc sin cos tan asin acos atan atan2 sinh cosh erf erfc clamp clamp_min
clamp_max clip minimum maximum addcmul addcdiv lerp where masked_fill isnan isinf isfinite nan_to_num
lstm gru rnn_tanh rnn_relu __and__ __or__ __xor__
eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not
sum mean var std var_mean amax amin max min prod any all argmax argmin norm linalg_vector_norm logsumexp cumsum
view reshape flatten unflatten permute transpose t numpy_T squeeze unsqueeze expand expand_as repeat
repeat_interleave cat concat stack hstack vstack split split_with_sizes chunk unbind select slice narrow index_select
gather index take_along_dim flip roll pad constant_pad_nd tril triu movedim swapaxes pixel_shuffle pixel_unshuffle
channel_shuffle contiguous clone alias detach to _to_copy type_as view_as diagonal unfold im2col col2im
max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d max_pool2d_with_indices upsample_nearest1d
upsample_nearest2d upsample_bilinear2d upsample_bicubic2d grid_sampler
dropout feature_dropout alpha_dropout embedding one_hot scaled_dot_product_attention
zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange linspace eye
scalar_tensor lift_fresh_copy sym_size
"""
_NAMES = frozenset(_LISTED.split())
# of tensors from nothing
_MAKERS = ("zeros", "ones", "full", "arange", "linspace", "eye", "scalar_tensor")
_SIZES: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "neg": operator.neg,
    "getitem": operator.getitem,
}
_SIZE_NAMES = {function: f"size.{name}" for name, function in _SIZES.items()}
LARGEST_SIZE = 1 << 62


def name_of(target: Any) -> str | None:
    """How a graph names the operation, or None where it cannot."""
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        # The name must lead back to the same overload. Otherwise a reader would run
        # another operation than the one that was recorded.
        full = f"aten.{name}.{target._overloadname}"
        return full if namespace == "aten" and operation(full) is target else None
    return _SIZE_NAMES.get(target)


def operation(name: str) -> Callable[..., Any] | None:
    """The operation of this name, or None where a graph may not name it."""
    family, _, rest = name.partition(".")
    if family == "size":
        return _checked(_SIZES[rest]) if rest in _SIZES else None
    # Only listed names reach getattr, so a file cannot walk through torch's attributes.
    packet_name, _, overload = rest.partition(".")
    if family != "aten" or packet_name not in _NAMES:
        return None
    packet = getattr(torch.ops.aten, packet_name)
    if overload not in packet.overloads():
        return None
    # An operation that writes to its arguments could change weights of the module.
    found = getattr(packet, overload)
    return None if found._schema.is_mutable else found


def computation(name: str) -> Callable[..., Any] | None:
    """What runs for the operation. Where sizes are asked for or given, tracing needs the
    methods of tensors: it would write down the sizes of its example otherwise.
    """
    found = operation(name)
    traced = _TRACED.get(found)
    if found is None or traced is None:
        return found

    def compute(*args: Any, **kwargs: Any) -> Any:
        chosen = traced if _is_tracing() else found
        return chosen(*args, **kwargs)

    return compute


def _is_tracing() -> bool:
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]


def _size_of(tensor: Tensor, axis: int) -> int:
    return tensor.shape[axis]


_TRACED: dict[Callable[..., Any] | None, Callable[..., Any]] = {
    torch.ops.aten.sym_size.int: _size_of,
    torch.ops.aten.view.default: Tensor.view,
    torch.ops.aten.reshape.default: Tensor.reshape,
    torch.ops.aten.expand.default: Tensor.expand,
    torch.ops.aten.repeat.default: Tensor.repeat,
    torch.ops.aten.zeros.default: torch.zeros,
    torch.ops.aten.ones.default: torch.ones,
    torch.ops.aten.full.default: torch.full,
    torch.ops.aten.new_zeros.default: Tensor.new_zeros,
    torch.ops.aten.new_ones.default: Tensor.new_ones,
    torch.ops.aten.new_full.default: Tensor.new_full,
    torch.ops.aten.arange.default: torch.arange,
    torch.ops.aten.arange.start: torch.arange,
    torch.ops.aten.arange.start_step: torch.arange,
}


def makes_tensors(name: str) -> bool:
    """Whether the operation must be told on which device."""
    return name.split(".")[1] in _MAKERS


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Python's whole numbers have no end, and a few products would fill the memory."""
    # It picks one of several results; its arguments are not sizes.
    if function is operator.getitem:
        return function

    def compute(*values: int) -> int:
        # `type` and not `isinstance`: True is an int for Python. Text would be repeated
        # by `mul`.
        traced = _is_tracing() and any(isinstance(v, Tensor) for v in values)
        if not traced and not all(type(value) is int for value in values):
            raise ValueError(f"sizes are whole numbers, got {values!r}")
        result = function(*values)
        if traced:
            return result
        if abs(result) > LARGEST_SIZE:
            raise ValueError(f"a size of the graph is beyond {LARGEST_SIZE}")
        return int(result)

    return compute
