"""Which rule belongs to which torch operation.

A rule gets the labels of the operation's tensors and returns the labels of its result.
An operation without a rule holds every unit it reads, so that ignorance costs savings,
never correctness.
"""

from __future__ import annotations

import torch
from torch import fx

from tersify.units import layer_rules, moving_rules
from tersify.units.walk import Rule

_POOLS = [
    f"{kind}_pool{d}d"
    for kind in ("max", "avg", "adaptive_avg", "adaptive_max", "lp")
    for d in (1, 2, 3)
]
_RESAMPLES = [
    f"upsample_{kind}"
    for kind in ("nearest1d", "nearest2d", "linear1d", "bilinear2d", "bicubic2d")
]
_MOVES = [
    "flatten",
    "permute",
    "transpose",
    "t",
    "movedim",
    "squeeze",
    "unsqueeze",
    "stack",
]
# Pointwise by their nature. Torch's own tag is missing from some of them, and from
# others in older releases.
_ACTIVATIONS = [
    "celu",
    "elu",
    "gelu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log_sigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "tanh",
    "threshold",
]
_RULES: dict[str, Rule] = {
    "linear": layer_rules.linear,
    **{f"conv{d}d": layer_rules.conv for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": layer_rules.conv_transpose for d in (1, 2, 3)},
    "embedding": layer_rules.embedding,
    "batch_norm": layer_rules.batch_norm,
    **dict.fromkeys([*_POOLS, *_RESAMPLES], moving_rules.keeps_channels),
    **dict.fromkeys(["mean", "sum", "amax", "amin", "std", "var"], moving_rules.reduce),
    **dict.fromkeys(["softmax", "log_softmax", "_softmax"], moving_rules.along_dim),
    **dict.fromkeys(
        [
            "dropout",
            "feature_dropout",
            "alpha_dropout",
            "clone",
            "contiguous",
            "detach",
            "to",
            "alias",
        ],
        moving_rules.same,
    ),
    **dict.fromkeys(_ACTIVATIONS, moving_rules.same),
    "prelu": layer_rules.prelu,
    **dict.fromkeys(
        ["view", "reshape", "_unsafe_view", "unflatten"], moving_rules.view
    ),
    "expand": moving_rules.expand,
    "expand_as": moving_rules.expand_as,
    **dict.fromkeys(_MOVES, moving_rules.rearrange),
    "cat": moving_rules.cat,
    **dict.fromkeys(
        ["select", "slice", "split", "split_with_sizes", "chunk", "unbind", "narrow"],
        moving_rules.take,
    ),
    **dict.fromkeys(["pad", "constant_pad_nd"], moving_rules.pad),
    **dict.fromkeys(["matmul", "bmm"], layer_rules.matmul),
    "scaled_dot_product_attention": layer_rules.attention,
    "getitem": moving_rules.getitem,
}


def rule_for(node: fx.Node) -> Rule | None:
    name = operation_name(node)
    if name in _RULES:
        return _RULES[name]
    # torch tags its pointwise operations, so new ones need no entry here.
    target = node.target
    return (
        moving_rules.pointwise
        if isinstance(target, torch._ops.OpOverload)
        and torch.Tag.pointwise in target.tags
        else None
    )


def writes_in_place(node: fx.Node) -> bool:
    """Whether the operation also changes the value that its first input names."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def operation_name(node: fx.Node) -> str:
    """`relu` for relu and for its in-place form; `getitem` for one result out of
    several.
    """
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.removeprefix("aten::").rstrip("_")
    return getattr(node.target, "__name__", "")
