"""Operations that change their arguments, and what computes the same without changing
any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.capture.refusal import refuse
from tersify.runtime.nested import leaves, map_leaves, tensors

aten = torch.ops.aten
_MOVES_MEMORY = ("set_", "resize_", "resize_as_", "swap")
# Their forms without the underscore give the same numbers in the same type, where all
# tensors are of one type.
_SAME_WITHOUT = (
    "abs",
    "add",
    "celu",
    "clamp",
    "clamp_max",
    "clamp_min",
    "copy",
    "div",
    "elu",
    "exp",
    "fill",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "masked_fill",
    "mish",
    "mul",
    "neg",
    "pow",
    "relu",
    "relu6",
    "rsqrt",
    "sigmoid",
    "silu",
    "sqrt",
    "sub",
    "tanh",
    "threshold",
    "zero",
)
# They update running statistics in training without saying so.
_UPDATES_STATISTICS = (
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
)


def written_arguments(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Tensor]:
    """The tensors that the call writes to, in the order of the schema."""
    # Arguments 3 and 4 are the running mean and variance, 5 says `training`.
    if func in _UPDATES_STATISTICS and args[5]:
        return [t for t in args[3:5] if t is not None]
    found: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        found.extend(tensors(given))
    return found


def functional_form(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    written: Sequence[Tensor],
) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """A callable that returns the new values of `written`, and its arguments."""
    name, overload = (
        func._schema.name.split("::")[1],
        func._schema.overload_name or "default",
    )
    if name in _MOVES_MEMORY:
        raise refuse(
            f"the forward calls {name}() on a tensor", "make a new tensor instead"
        )
    if func is aten.as_strided_.default and _keeps_every_number(*args, **kwargs):
        return aten.view.default, (args[0], args[1]), {}
    # In place the result keeps the type of the tensor written to; the functional form
    # promotes. They agree where all types are the same.
    one_type = all(
        t.dtype in (written[0].dtype, torch.bool) for t in tensors((args, kwargs))
    )
    # The functional form is what the lowerings know, so it is preferred.
    if (
        len(written) == 1
        and written[0] is args[0]
        and name[:-1] in _SAME_WITHOUT
        and (one_type or name == "copy_")
    ):
        return getattr(getattr(aten, name[:-1]), overload), args, kwargs
    return OnCopies(func, _written_positions(func, args, kwargs)), args, kwargs


def _keeps_every_number(
    tensor: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> bool:
    """Whether the strides give all numbers of a tensor in their order, as torch does
    with a mean over channels that lie last. An axis of one number has any stride.
    """
    whole = math.prod(size) == tensor.numel() and tensor.is_contiguous()
    if storage_offset or not whole:
        return False
    step = 1
    for length, own in zip(reversed(size), reversed(stride), strict=True):
        if length != 1 and own != step:
            return False
        step *= length
    return True


def _written_positions(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[int, ...]:
    """Which leaves of the arguments are written to; a tensor may also stand where it is
    only read.
    """
    schema = func._schema.arguments
    changed = {
        a.name for a in schema if a.alias_info is not None and a.alias_info.is_write
    }
    if func in _UPDATES_STATISTICS:
        changed = {a.name for a in schema[3:5]}
    found: list[int] = []
    # Leaves are counted in the order in which `OnCopies` meets them.
    position = 0
    for name, given in (
        *zip((a.name for a in schema), args, strict=False),
        *kwargs.items(),
    ):
        for leaf in leaves(given):
            if name in changed and isinstance(leaf, Tensor):
                found.append(position)
            position += 1
    return tuple(found)


class OnCopies:
    """Calls an operation on copies of the arguments that it writes to, and returns the
    copies, and whatever else it made.
    """

    def __init__(self, func: Any, positions: tuple[int, ...]) -> None:
        self.func = func
        self.positions = positions
        self.__name__ = func._schema.name.split("::")[1].strip("_")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnCopies) and (self.func, self.positions) == (
            other.func,
            other.positions,
        )

    def __hash__(self) -> int:
        return hash((self.func, self.positions))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        copies: list[Tensor] = []
        count = -1

        def copied(leaf: Any) -> Any:
            nonlocal count
            count += 1
            if count not in self.positions:
                return leaf
            copies.append(leaf.clone(memory_format=torch.contiguous_format))
            return copies[-1]

        args, kwargs = map_leaves((args, kwargs), copied)
        made = self.func(*args, **kwargs)
        fresh = [t for t in tensors(made) if not any(t is own for own in copies)]
        return tuple(copies + fresh) if fresh or len(copies) > 1 else copies[0]
