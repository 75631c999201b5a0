"""Which calls of a compiled network are alike, and inputs that tell whether a plan depends on their numbers."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.nested import signature


def key_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls with equal keys run the same plan. Under autocast a module computes in
    other types.
    """
    # The usual call, without a walk through nested arguments. `type` and not
    # `isinstance`, since a subclass may compute something else; each once, since a
    # module may ask whether two are one.
    plain = not kwargs and all(type(x) is Tensor for x in args)
    if plain and (len(args) < 2 or len(set(map(id, args))) == len(args)):
        key: tuple[Any, ...] = tuple((x.shape, x.dtype) for x in args)
    else:
        key = signature((args, dict(kwargs)), {})
    # The type that autocast casts to is part of the key, because the same module
    # records other casts.
    return (
        (torch.get_autocast_dtype("cpu"), key)
        if torch.is_autocast_enabled("cpu")
        else key
    )


def other_numbers(x: Tensor, changed: Container[torch.dtype | None]) -> Tensor:
    """Numbers of the same kind: floats elsewhere and a little changed. Where they are
    among the `changed`, booleans become their opposites and integers (None) the next
    smaller ones; where not, they are only elsewhere.
    """
    # A plan that baked numbers of the example into itself gives the wrong result for
    # these, so the comparison with the module finds it.
    flipped = x.detach().flip(tuple(range(x.ndim))).contiguous()
    if x.dtype is torch.bool:
        return ~flipped if torch.bool in changed else flipped
    if x.is_floating_point():
        return _shaken(flipped)
    if x.is_complex() or None not in changed:
        return flipped
    # Ids and lengths stay in their ranges, and ones and zeros become each other.
    return torch.where(flipped > 0, flipped - 1, torch.where(flipped == 0, 1, flipped))


def _shaken(x: Tensor) -> Tensor:
    noise = torch.randn(
        x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32
    )
    # A tenth of the spread changes every float without leaving its usual range. 1e-3
    # moves a constant input as well.
    spread = x.float().std() if x.numel() > 1 else x.float().abs().sum()
    return x + (noise * (0.1 * spread + 1e-3)).to(x.dtype)
