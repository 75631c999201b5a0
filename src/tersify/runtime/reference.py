"""The plan in plain torch, in any floating type: what every kernel is tested against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.plan import Finish, Node, Plan, Quant, resolve


def run_reference(plan: Plan, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of `plan`, computed in the type of the inputs."""
    values = run_values(plan, inputs)
    return tuple(values[name] for name in plan.outputs)


def run_values(plan: Plan, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """Every value of the plan by its name."""
    dtype = next((x.dtype for x in inputs if x.is_floating_point()), torch.float32)
    values: dict[str, Any] = {name: _as(dtype, constant) for name, constant in plan.constants.items()}
    values |= {i.name: x for i, x in zip(plan.inputs, inputs, strict=True)}
    for node in plan.nodes:
        is_mean = node.pooled is not None and node.pooled.is_mean
        if plan.narrow(node):
            read = {name: quantized(values[name], plan.quants[name]) for name in node.reads}
            made = run_node(node, read, dtype)
            values[node.name] = made if is_mean else quantized(made, plan.quants[node.name])
        elif plan.halves(node):
            made = run_node(node, {name: as_halves(values[name]) for name in node.reads}, dtype)
            values[node.name] = made if is_mean else as_halves(made)
        elif plan.rounds_vectors(node):
            values[node.name] = run_node(node, values, dtype, source=rounded_vectors(values[node.inputs[0]]))
        elif plan.reads_steps(node):
            name = node.inputs[0]
            values[node.name] = run_node(node, values, dtype, source=quantized(values[name], plan.quants[name]))
        else:
            values[node.name] = run_node(node, values, dtype)
    return values


def quantized(x: Tensor, quant: Quant) -> Tensor:
    """The nearest numbers that the quantization can express."""
    return (x / quant.scale).round().clamp(quant.low, quant.high) * quant.scale


def as_halves(x: Tensor) -> Tensor:
    """The nearest 16-bit floats; beyond ±65504 they are infinite."""
    return x.half().to(x.dtype)


def rounded_vectors(x: Tensor) -> Tensor:
    """Every vector rounded to 127 steps up and down of its own largest number; NaN and infinity spoil their vector."""
    top = x.abs().amax(-1, keepdim=True)
    scale = (top / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (x / scale).round() * scale


def run_node(node: Node, values: dict[str, Any], dtype: torch.dtype, *, source: Tensor | None = None) -> Any:
    """`source` stands in for the input; the residual keeps its numbers, even where it is the same value."""
    if node.kind == "torch":
        assert node.call is not None
        return node.call(*resolve(node.args, values), **resolve(node.kwargs, values))
    sources = [values[name] for name in node.inputs] if source is None else [source]
    result = _KINDS[node.kind](node, sources, dtype)
    residual = None if node.residual is None else values[node.residual]
    result = finish(result, residual, node, node.finish)
    if node.pooled is None:
        return result
    if node.pooled.window is not None:
        options = {"window": node.pooled.window, "max": True, "ceil": False}
        return _pool(replace(node, options=options), [result], dtype)
    return finish(_mean(node, [result], dtype), None, node, node.pooled.finish)


def finish(x: Tensor, residual: Tensor | None, node: Node, f: Finish) -> Tensor:
    def along(constant: Tensor) -> Tensor:
        shape = [1] * x.ndim
        shape[node.channel_axis] = -1
        return constant.to(x.dtype).reshape(shape)

    if f.scale is not None:
        x = x * along(f.scale)
    if f.shift is not None:
        x = x + along(f.shift)
    if residual is not None:
        x = x * residual if node.multiply else x + residual
    if f.scale2 is not None and f.shift2 is not None:
        x = x * along(f.scale2) + along(f.shift2)
    if f.act == "gelu":
        return F.gelu(x)
    if f.act == "silu":
        return F.silu(x)
    return x.clamp(f.low, f.high) if f.activates else x


def _as(dtype: torch.dtype, constant: Tensor) -> Tensor:
    return constant.to(dtype) if constant.is_floating_point() else constant


def _conv(node: Node, sources: list[Tensor], dtype: torch.dtype) -> Tensor:
    assert node.weight is not None
    weight = node.weight.values.to(dtype)
    sh, sw, ph, pw, dh, dw = node.options["window"][2:]
    groups = node.options["groups"]
    if weight.ndim == 3:
        return F.conv1d(sources[0], weight, None, sw, pw, dw, groups)
    return F.conv2d(sources[0], weight, None, (sh, sw), (ph, pw), (dh, dw), groups)


def _linear(node: Node, sources: list[Tensor], dtype: torch.dtype) -> Tensor:
    assert node.weight is not None
    return F.linear(sources[0], node.weight.values.to(dtype))


def _embedding(node: Node, sources: list[Tensor], dtype: torch.dtype) -> Tensor:
    assert node.weight is not None
    values = node.weight.values.to(dtype)
    if node.weight.row_scale is not None:
        values = values * node.weight.row_scale.to(dtype).unsqueeze(1)
    return F.embedding(sources[0], values)


def _pool(node: Node, sources: list[Tensor], dtype: torch.dtype) -> Tensor:
    kh, kw, sh, sw, ph, pw, dh, dw = node.options["window"]
    x = sources[0] if sources[0].ndim == 4 else sources[0].unsqueeze(2)
    if node.options["max"]:
        x = F.max_pool2d(x, (kh, kw), (sh, sw), (ph, pw), (dh, dw), ceil_mode=node.options["ceil"])
    else:
        x = F.avg_pool2d(x, (kh, kw), (sh, sw), (ph, pw), count_include_pad=node.options["count_padding"])
    return x.reshape(len(x), *node.shape)


def _mean(node: Node, sources: list[Tensor], dtype: torch.dtype) -> Tensor:
    return sources[0].flatten(2).mean(2).reshape(len(sources[0]), *node.shape)


def _layer_norm(node: Node, sources: list[Tensor], dtype: torch.dtype) -> Tensor:
    weight, bias = (None if t is None else t.to(dtype) for t in (node.options["weight"], node.options["bias"]))
    return F.layer_norm(sources[0], node.shape[-1:], weight, bias, node.options["eps"])


_KINDS: dict[str, Any] = {
    "conv": _conv,
    "linear": _linear,
    "embedding": _embedding,
    "pool": _pool,
    "mean": _mean,
    "pointwise": lambda node, sources, dtype: sources[0],
    "cat": lambda node, sources, dtype: torch.cat(sources, 1),
    "view": lambda node, sources, dtype: sources[0].reshape(len(sources[0]), *node.shape),
    "softmax": lambda node, sources, dtype: sources[0].softmax(-1),
    "layer_norm": _layer_norm,
}
