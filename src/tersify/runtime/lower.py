"""One function an ATen operation: its plan node, or `CannotLower` with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from tersify.runtime.plan import Finish, Node
from tersify.runtime.weights import Weight, classify
from tersify.tensor import CompressedTensor

aten = torch.ops.aten


class CannotLower(Exception):  # noqa: N818  (a control signal, never shown as an error)
    """No kernel serves this call; the message says why."""


@dataclass(kw_only=True)
class Context:
    """What the lowerings know: constants by graph name, their names in the model, its packed weights."""

    constants: dict[str, Tensor]
    names: Mapping[str, str]
    packed: Mapping[str, CompressedTensor | Tensor]
    batch: int | None

    def constant(self, node: Any, what: str) -> Tensor:
        if not isinstance(node, fx.Node) or node.name not in self.constants:
            raise CannotLower(f"its {what} is computed from the input")
        return self.constants[node.name]

    def optional(self, node: Any, what: str) -> Tensor | None:
        return None if node is None else self.constant(node, what)

    def parameter(self, node: Any) -> str:
        """What the model calls a constant."""
        return self.names.get(node.name, node.name)

    def weight(self, node: Any) -> Weight:
        value = self.constant(node, "weight")
        name = self.parameter(node)
        packed = self.packed.get(name) if name in self.packed else None
        return classify(name, value, packed if isinstance(packed, CompressedTensor) else None)

    def shape(self, node: Any) -> tuple[int, ...]:
        """Of one image; refuses what is not float32 with the batch in front."""
        if not isinstance(node, fx.Node) or node.name in self.constants:
            raise CannotLower("an operand is a constant")
        value = node.meta["val"]
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            raise CannotLower(f"kernels take float32, this is {getattr(value, 'dtype', type(value).__name__)}")
        if value.ndim < 2 or not self._is_batch(value.shape[0]) or not all(isinstance(n, int) for n in value.shape[1:]):
            raise CannotLower(f"the batch is not the first of its sizes {tuple(value.shape)}")
        return tuple(value.shape[1:])

    def _is_batch(self, size: Any) -> bool:
        return size == self.batch if self.batch is not None else not isinstance(size, int)


Lowering = Callable[[fx.Node, Context], Node]
LOWERINGS: dict[Any, Lowering] = {}


def lowers(*targets: Any) -> Callable[[Lowering], Lowering]:
    def register(lowering: Lowering) -> Lowering:
        for target in targets:
            LOWERINGS[target] = lowering
        return lowering

    return register


def arguments(node: fx.Node) -> dict[str, Any]:
    """The call's arguments by their schema names, defaults filled in."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    return {a.name: given.get(a.name, a.default_value) for a in schema.arguments}


def _pair(value: Any, ndim: int) -> tuple[int, int]:
    """(h, w) of an option of a 1- or 2-dimensional operation."""
    values = [value] if isinstance(value, int) else list(value)
    if ndim == 2:
        return (values[0], values[-1])
    return (1, values[0])


def _float64(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float64)


def _window(kernel: tuple[int, int], a: Mapping[str, Any], ndim: int) -> tuple[int, ...]:
    stride = _pair(a["stride"] or kernel[2 - ndim :], ndim)
    pad = _pair(a["padding"], ndim) if ndim == 2 else (0, _pair(a["padding"], 1)[1])
    dilation = _pair(a.get("dilation", 1), ndim)
    return (*kernel, *stride, *pad, *dilation)


@lowers(aten.conv1d.default, aten.conv2d.default, aten.conv1d.padding, aten.conv2d.padding)
def _conv(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    context.shape(a["input"])
    weight = context.weight(a["weight"])
    ndim = weight.values.ndim - 2
    kernel = (1, weight.values.shape[2]) if ndim == 1 else tuple(weight.values.shape[2:])
    a["padding"] = _explicit_padding(a["padding"], kernel, _pair(a["dilation"], ndim), ndim)
    return Node(
        name=node.name,
        kind="conv",
        inputs=(a["input"].name,),
        shape=context.shape(node),
        weight=weight,
        parameter=context.parameter(a["weight"]),
        finish=_weight_finish(weight, context.optional(a["bias"], "bias")),
        options={"window": _window(kernel, a, ndim), "groups": a["groups"]},  # type: ignore[arg-type]
    )


def _explicit_padding(padding: Any, kernel: Any, dilation: tuple[int, int], ndim: int) -> Any:
    if not isinstance(padding, str):
        return padding
    if padding == "valid":
        return [0] * ndim
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if any(t % 2 for t in total):
        raise CannotLower("'same' padding is uneven here")
    return [t // 2 for t in total][2 - ndim :]


def _weight_finish(weight: Weight, bias: Tensor | None) -> Finish:
    return Finish(
        scale=None if weight.row_scale is None else _float64(weight.row_scale),
        shift=None if bias is None else _float64(bias),
    )


@lowers(aten.linear.default)
def _linear(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    context.shape(a["input"])
    weight = context.weight(a["weight"])
    return Node(
        name=node.name,
        kind="linear",
        inputs=(a["input"].name,),
        shape=context.shape(node),
        weight=weight,
        parameter=context.parameter(a["weight"]),
        finish=_weight_finish(weight, context.optional(a["bias"], "bias")),
    )


@lowers(aten.embedding.default)
def _embedding(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    ids = a["indices"]
    if not isinstance(ids, fx.Node) or ids.op != "placeholder" or ids.meta["val"].dtype != torch.int64:
        raise CannotLower("its numbers are not an int64 input of the network")
    weight = context.weight(a["weight"])
    return Node(
        name=node.name,
        kind="embedding",
        inputs=(ids.name,),
        shape=context.shape(node),
        weight=weight,
        parameter=context.parameter(a["weight"]),
        options={"rows": weight.values.shape[0]},
    )


@lowers(aten.batch_norm.default)
def _batch_norm(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    if a["training"] or a["running_mean"] is None:
        raise CannotLower("it normalises with the statistics of the batch")
    mean = _float64(context.constant(a["running_mean"], "mean"))
    spread = (_float64(context.constant(a["running_var"], "variance")) + a["eps"]).rsqrt()
    gamma, beta = context.optional(a["weight"], "weight"), context.optional(a["bias"], "bias")
    scale = spread if gamma is None else spread * _float64(gamma)
    shift = -mean * scale if beta is None else _float64(beta) - mean * scale
    return pointwise(node, context, a["input"], Finish(scale=scale, shift=shift))


def pointwise(node: fx.Node, context: Context, source: Any, finish: Finish, **more: Any) -> Node:
    if context.shape(source) != context.shape(node):
        raise CannotLower("its operands have different shapes")
    return Node(
        name=node.name, kind="pointwise", inputs=(source.name,), shape=context.shape(node), finish=finish, **more
    )


@lowers(aten.max_pool1d.default, aten.max_pool2d.default, aten.avg_pool1d.default, aten.avg_pool2d.default)
def _pool(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    is_max = "max" in str(node.target)
    if (a["ceil_mode"] and not is_max) or a.get("divisor_override") is not None:
        raise CannotLower("averages with ceil_mode or divisor_override have no kernel")
    shape = context.shape(a["self"])
    ndim = 1 if "1d" in str(node.target) else 2
    if len(shape) != ndim + 1:
        raise CannotLower("it has no batch")
    window = _window(_pair(a["kernel_size"], ndim), a, ndim)
    options = {
        "window": window,
        "max": is_max,
        "count_padding": a.get("count_include_pad", True),
        "ceil": a["ceil_mode"],
    }
    return Node(name=node.name, kind="pool", inputs=(a["self"].name,), shape=context.shape(node), options=options)


@lowers(aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default)
def _adaptive_pool(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    given, wanted = context.shape(a["self"]), context.shape(node)
    if all(n == 1 for n in wanted[1:]):
        return _mean_node(node, context, a["self"])
    if any(g % w for g, w in zip(given[1:], wanted[1:], strict=True)):
        raise CannotLower("its windows have different sizes")
    kernel = [g // w for g, w in zip(given[1:], wanted[1:], strict=True)]
    window = _window(_pair(kernel, len(kernel)), {"stride": kernel, "padding": [0] * len(kernel)}, len(kernel))
    options = {"window": window, "max": False, "count_padding": True, "ceil": False}
    return Node(name=node.name, kind="pool", inputs=(a["self"].name,), shape=wanted, options=options)


@lowers(aten.mean.dim)
def _mean(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    ndim = len(context.shape(a["self"])) + 1
    axes = sorted(axis % ndim for axis in (a["dim"] or []))
    if ndim < 3 or axes != list(range(2, ndim)):
        raise CannotLower("only the mean over all places has a kernel")
    return _mean_node(node, context, a["self"])


def _mean_node(node: fx.Node, context: Context, source: fx.Node) -> Node:
    context.shape(source)
    return Node(name=node.name, kind="mean", inputs=(source.name,), shape=context.shape(node))


@lowers(
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.dropout.default,
    aten.contiguous.default,
)
def _view(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    if a.get("train", False):
        raise CannotLower("it drops at random")
    source = a["self"] if "self" in a else a["input"]
    context.shape(source)
    return Node(name=node.name, kind="view", inputs=(source.name,), shape=context.shape(node))


@lowers(aten.cat.default)
def _cat(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    ndim = len(context.shape(node)) + 1
    if a["dim"] % ndim != 1:
        raise CannotLower("only joining channels has a kernel")
    for source in a["tensors"]:
        context.shape(source)
    return Node(name=node.name, kind="cat", inputs=tuple(s.name for s in a["tensors"]), shape=context.shape(node))


@lowers(aten.softmax.int)
def _softmax(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    shape = context.shape(a["self"])
    if a["dtype"] is not None or a["dim"] % (len(shape) + 1) != len(shape):
        raise CannotLower("only the last axis has a kernel")
    return Node(name=node.name, kind="softmax", inputs=(a["self"].name,), shape=shape)


@lowers(aten.layer_norm.default)
def _layer_norm(node: fx.Node, context: Context) -> Node:
    a = arguments(node)
    shape = context.shape(a["input"])
    if len(a["normalized_shape"]) != 1:
        raise CannotLower("only the last axis has a kernel")
    options = {
        "weight": context.optional(a["weight"], "weight"),
        "bias": context.optional(a["bias"], "bias"),
        "eps": a["eps"],
    }
    return Node(name=node.name, kind="layer_norm", inputs=(a["input"].name,), shape=shape, options=options)
