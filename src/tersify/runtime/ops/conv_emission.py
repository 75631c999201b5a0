"""A convolution as the engine's calls: one function for each kernel family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.ops.conv import Conv
    from tersify.runtime.plan import Node
from torch import Tensor

from tersify.runtime.ops.conv_kernels import ConvKernel


def _in_2d(values: Tensor) -> Tensor:
    return (values if values.ndim == 4 else values.unsqueeze(2)).contiguous()


def _residual(emitter: Emitter, node: Node) -> int:
    return emitter.source(node, 1) if len(node.inputs) > 1 else -1


def _mean_epilogue(op: Conv, emitter: Emitter) -> Any:
    if op.pooling is None or not op.pooling.is_mean:
        return None
    return op.pooling.epilogue.in_cpp(emitter.module, len(op.weight.values))


def _output(op: Conv, node: Node) -> tuple[int, int]:
    return _last_two(op.sums_shape(node))


def emit_lists(op: Conv, emitter: Emitter, node: Node) -> int:
    module, rows = emitter.module, len(op.weight.values)
    half = op.kernel is ConvKernel.LISTS_F16
    output = _output(op, node)
    # The weights are packed once per key, and plans of other sizes share them.
    weights = emitter.packed(
        op.weight,
        (op.kernel, op.window, op.groups),
        lambda: module.pack_conv(
            emitter.workspace,
            _in_2d(op.weight.values),
            list(op.window),
            op.groups,
            getattr(module.ValueKind, op.weight.kind.name),
            op.weight.table_list,
            module.Lane.F16 if half else module.Lane.F32,
            output,
        ),
    )
    value = emitter.engine.conv(
        emitter.source(node),
        weights,
        op.epilogue.in_cpp(module, rows),
        _residual(emitter, node),
        _mean_epilogue(op, emitter),
    )
    return _with_pool_folded(op, emitter, node, value)


def emit_dense(op: Conv, emitter: Emitter, node: Node) -> int:
    module, rows = emitter.module, len(op.weight.values)
    output = _output(op, node)
    weights = emitter.packed(
        op.weight,
        (op.kernel, op.window),
        lambda: module.pack_conv_dense(
            emitter.workspace, _in_2d(op.weight.factors), list(op.window), output
        ),
    )
    epilogue = op.epilogue.in_cpp(module, rows)
    mean = _mean_epilogue(op, emitter)
    value = emitter.engine.conv_dense(
        emitter.source(node), weights, epilogue, _residual(emitter, node), mean
    )
    return _with_pool_folded(op, emitter, node, value)


def _with_pool_folded(op: Conv, emitter: Emitter, node: Node, value: int) -> int:
    """Maxima become part of the convolution; a mean is part of it already."""
    if op.pooling is None or op.pooling.window is None:
        return value
    emitter.belongs_to(node, value)
    return emitter.engine.fold_max_pool(
        value, list(op.pooling.window), _last_two(node.shape)
    )


def _last_two(shape: tuple[int, ...]) -> tuple[int, int]:
    return (1, shape[2]) if len(shape) == 3 else (shape[2], shape[3])


def emit_int8_lists(op: Conv, emitter: Emitter, node: Node) -> int:
    for position, name in enumerate(node.inputs):
        # Tells the engine the steps of each value it reads, so that the value is stored
        # as bytes.
        q = emitter.quants[name]
        emitter.engine.quantize(emitter.source(node, position), q.scale, q.low, q.high)
    made = emitter.quants[node.name]
    output = _output(op, node)
    weights = emitter.packed(
        op.weight,
        (op.kernel, op.window, op.groups),
        lambda: emitter.module.pack_conv_i8(
            emitter.workspace,
            _in_2d(op.weight.values),
            list(op.window),
            op.groups,
            output,
        ),
    )
    value = emitter.engine.conv_i8(
        emitter.source(node),
        weights,
        # Sums of signs times bytes count steps of the input.
        op.epilogue.scaled_by(emitter.quants[node.inputs[0]].scale).in_cpp(
            emitter.module, len(op.weight.values)
        ),
        _residual(emitter, node),
        (made.scale, made.low, made.high),
        _mean_epilogue(op, emitter),
    )
    return _with_pool_folded(op, emitter, node, value)


def emit_codes(op: Conv, emitter: Emitter, node: Node) -> int:
    given = None if op.levels is None else op.levels.quant
    q = emitter.quants[node.inputs[0]] if given is None else given
    whole, step = op.weight.whole_steps()
    weights = emitter.packed(
        op.weight,
        (op.kernel, op.window),
        lambda: emitter.module.pack_conv_codes(
            emitter.workspace, _in_2d(whole), list(op.window)
        ),
    )
    value = emitter.engine.conv_codes(
        emitter.source(node),
        weights,
        # A product of codes counts steps of the input times steps of the weight.
        op.epilogue.scaled_by(q.scale * step).in_cpp(emitter.module, len(whole)),
        _residual(emitter, node),
        (q.scale, q.low, q.high),
    )
    return _pooled(op, emitter, node, value)


def emit_bits(op: Conv, emitter: Emitter, node: Node) -> int:
    assert op.levels is not None
    weights = emitter.packed(
        op.weight,
        (op.kernel, op.window),
        lambda: emitter.module.pack_conv_bits(
            emitter.workspace, _in_2d(op.weight.values), list(op.window)
        ),
    )
    # Signs count themselves, levels their steps.
    step = 1.0 if op.levels.quant is None else op.levels.quant.scale
    value = emitter.engine.conv_bits(
        emitter.source(node),
        weights,
        op.epilogue.scaled_by(step).in_cpp(emitter.module, len(op.weight.values)),
        _residual(emitter, node),
        op.levels.in_cpp,
    )
    return _pooled(op, emitter, node, value)


def _pooled(op: Conv, emitter: Emitter, node: Node, value: int) -> int:
    """These families have no pool of their own, so it runs as a second operation of the
    same node.
    """
    if op.pooling is None:
        return value
    emitter.belongs_to(node, value)
    if op.pooling.window is not None:
        return emitter.engine.max_pool(
            value, list(op.pooling.window), _last_two(node.shape)
        )
    return emitter.engine.global_mean(value, _mean_epilogue(op, emitter))
