"""What an engine can be told: every call and every way to pack a weight, with the kinds
of its arguments.

The same table stands in docs/reference/format.md and in csrc/lib/plan_calls.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping

_SUM = ("value", "weight", "epilogue", "value")

# Every call but `quantize` and `outputs` makes a value; values are counted in the order
# of their calls.
CALLS: Mapping[str, tuple[str, ...]] = {
    "input": ("items", "shape"),
    "input_ids": ("items", "count"),
    "conv": (*_SUM, "mean"),
    "conv_dense": (*_SUM, "mean"),
    "conv_i8": (*_SUM, "quant", "mean"),
    "conv_codes": (*_SUM, "quant"),
    "quantize": ("value", "number", "number", "number"),
    "linear": ("value", "weight", "epilogue"),
    "linear_i8": ("value", "weight", "epilogue"),
    "max_pool": ("value", "window", "size"),
    "avg_pool": ("value", "window", "size", "flag"),
    "fold_max_pool": ("value", "window", "size"),
    "global_mean": ("value", "epilogue"),
    "elementwise": ("value", "value", "flag", "epilogue"),
    "concatenate": ("values",),
    "view": ("value", "items", "shape"),
    "embedding": ("value", "weight"),
    "softmax": ("value", "count"),
    "softmax_along": ("value", "count", "count"),
    "layer_norm": ("value", "count", "numbers", "numbers", "number", "flag"),
    "group_norm": ("value", "count", "numbers", "numbers", "number"),
    "prelu": ("value", "numbers"),
    "curve": ("value", "curve"),
    "with_constant": ("value", "numbers", "flag"),
    "move": ("value", "shape", "axes", "count", "number"),
    "attention": ("values", "counts6", "number", "flag", "flags4", "flags3"),
    "attention_masked": (
        "values",
        "counts6",
        "number",
        "flag",
        "flags4",
        "flags3",
        "numbers",
    ),
    "recurrent": ("value", "weight", "flag"),
    "recurrent_from": ("value", "weight", "flag", "values", "flag"),
    "outputs": ("values",),
}
MAKES_NOTHING = frozenset({"quantize", "outputs"})

PACKS: Mapping[str, tuple[str, ...]] = {
    "conv": ("array", "window", "count", "kind", "numbers", "lane", "size"),
    "conv_dense": ("array", "window", "size"),
    "conv_i8": ("array", "window", "count", "size"),
    "conv_codes": ("array", "window"),
    "linear": ("array", "kind", "numbers", "flag"),
    "linear_i8": ("array", "flag"),
    "recurrent": ("array", "flag", "numbers"),
    "embedding": ("array", "numbers", "numbers"),
}
# Kinds of arguments that are written as places in a list: the type, and its names.
CHOICES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "kind": ("ValueKind", ("SIGN", "TABLE", "FLOAT")),
    "lane": ("Lane", ("F32",)),
    "curve": ("Curve", ("EXP", "LOG", "LOG_SIGMOID", "ROOT")),
}
ACTIVATIONS = (
    "CLAMP",
    "GELU",
    "GELU_TANH",
    "SILU",
    "SIGMOID",
    "TANH",
    "HARD_SWISH",
    "LEAKY",
)
EPILOGUE_VECTORS = ("scale", "shift", "scale2", "shift2")
LENGTHS = {"window": 8, "size": 2, "shape": 3, "counts6": 6, "flags4": 4, "flags3": 3}
