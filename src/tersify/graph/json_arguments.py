"""Arguments of operations as JSON, and back: numbers and text as they are, the rest as
objects of one key.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_DTYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
_MEMORY = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
}
# Only these three spellings: float() itself would also take "1_0" or " 1 ".
_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
Json = Any


def dtype_name(kind: torch.dtype) -> str:
    name = str(kind).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"a graph cannot hold numbers of the kind {kind}")
    return name


def dtype_of(name: Any) -> torch.dtype:
    if not isinstance(name, str) or name not in _DTYPES:
        raise ValueError(
            f"the graph names a kind of numbers that is not known, {name!r}"
        )
    return _DTYPES[name]


def to_json(value: Any, name_of: Callable[[torch.fx.Node], str]) -> Json:
    """An argument in a graph of torch's."""
    if isinstance(value, torch.fx.Node):
        return {"value": name_of(value)}
    # JSON writes these as they are and reads them back exactly.
    if value is None or isinstance(value, (bool, int, str)):
        return value
    # JSON has no infinity and no NaN, so these go as text.
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (list, tuple)):
        return [to_json(entry, name_of) for entry in value]
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    # A graph runs on the device of its inputs, so the recorded one is dropped.
    if isinstance(value, torch.device):
        return {"device": "own"}
    if value is torch.strided:
        return {"layout": "strided"}
    # Memory formats are singletons, so identity tells them apart.
    for name, kind in _MEMORY.items():
        if value is kind:
            return {"memory": name}
    raise ValueError(f"a graph cannot hold the argument {value!r}")


def from_json(given: Json, values: Mapping[str, Any], device: torch.device) -> Any:
    """The argument, with values of the graph in their places."""
    if isinstance(given, list):
        return [from_json(entry, values, device) for entry in given]
    if not isinstance(given, dict):
        return given
    # Every object has one key, which tells its kind.
    if len(given) != 1:
        raise _unknown_argument(given)
    [(kind, name)] = given.items()
    # What these name does not matter: there is one of each.
    only = {"device": device, "layout": torch.strided}
    if kind in only:
        return only[kind]
    if kind == "dtype":
        return dtype_of(name)
    named = {"value": values, "float": _FLOATS, "memory": _MEMORY}.get(kind, {})
    if not isinstance(name, str) or name not in named:
        raise _unknown_argument(given)
    return named[name]


def _unknown_argument(given: Json) -> ValueError:
    return ValueError(f"the graph has the argument {given!r}, which means nothing")


def names_in(given: Json) -> list[str]:
    """The values that an argument refers to."""
    if isinstance(given, list):
        return [name for entry in given for name in names_in(entry)]
    # The file may hold anything here, so the kind of each entry is asked for.
    if not isinstance(given, dict):
        return []
    name = given.get("value")
    return [name] if isinstance(name, str) else []


def tensor_to_json(tensor: Tensor) -> Json:
    """A small constant of the network."""
    flat = tensor.detach().cpu().contiguous()
    raw = flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    data = base64.b64encode(raw).decode()
    return {
        "dtype": dtype_name(tensor.dtype),
        "shape": list(tensor.shape),
        "data": data,
    }


def tensor_from_json(given: Json) -> Tensor:
    if (
        not isinstance(given, dict)
        or not isinstance(given.get("data"), str)
        or not is_shape(given.get("shape"))
    ):
        raise ValueError("a constant of the graph is not {dtype, shape, data}")
    kind, shape = dtype_of(given.get("dtype")), given["shape"]
    # A bytearray, because torch warns about tensors over memory that is read-only.
    raw = bytearray(base64.b64decode(given["data"], validate=True))
    if len(raw) != math.prod(shape) * kind.itemsize:
        raise ValueError(
            f"a constant of the graph has {len(raw)} bytes, its shape {shape} takes others"
        )
    # A bool byte other than 0 and 1 is undefined behaviour in torch's kernels.
    if kind is torch.bool and any(byte > 1 for byte in raw):
        raise ValueError("a constant of the graph has a truth value other than 0 and 1")
    # `frombuffer` refuses an empty buffer.
    return (
        torch.frombuffer(raw, dtype=kind).reshape(shape)
        if raw
        else torch.empty(shape, dtype=kind)
    )


def is_shape(given: Any) -> bool:
    return (
        # 48 bits keep the product of a few axes within Python's and torch's sizes, and
        # no tensor of torch has more than a few dozen axes.
        isinstance(given, list)
        and len(given) <= 32
        and all(type(n) is int and 0 <= n < 1 << 48 for n in given)
    )
