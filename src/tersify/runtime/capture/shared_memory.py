"""Memory that several tensors share: writing through one of them changes what the
others read.

A graph has no memory, only values. Here every write makes a new version, and who reads
an older view afterwards gets the value that the memory has by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# function, arguments, the shape and type of the result → the value's name
Emit = Callable[..., str]


@dataclass(frozen=True)
class Geometry:
    """Where the numbers of a tensor lie in its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Geometry:
        return cls(
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.dtype,
        )

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def is_contiguous(self) -> bool:
        # An axis of size 1 is never stepped along, so its stride does not matter.
        expected = 1
        for size, stride in zip(
            reversed(self.shape), reversed(self.stride), strict=True
        ):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def is_expanded(self) -> bool:
        """One number of the memory stands at several positions."""
        return any(
            size > 1 and stride == 0
            for size, stride in zip(self.shape, self.stride, strict=True)
        )

    def same_numbers(self, other: Geometry) -> bool:
        """Both are the same run of memory under different shapes."""
        return (
            self.is_contiguous
            and other.is_contiguous
            and (self.offset, self.numel, self.dtype)
            == (other.offset, other.numel, other.dtype)
        )


def read_view(base: Tensor, memory: tuple[Any, ...], view: tuple[Any, ...]) -> Tensor:
    """What `view` (shape, stride, offset) sees of memory that holds `base` as `memory`
    says.
    """
    return _laid_out(base, memory).as_strided(view[0], view[1], view[2] - memory[2])


def write_view(
    base: Tensor, value: Tensor, memory: tuple[Any, ...], view: tuple[Any, ...]
) -> Tensor:
    """`base` after `value` was written through `view`."""
    made = _laid_out(base, memory)
    made.as_strided(view[0], view[1], view[2] - memory[2]).copy_(value)
    return made


def with_strides(
    numbers: Tensor, shape: tuple[int, ...], stride: tuple[int, ...]
) -> Tensor:
    """A fresh copy in memory that has these strides, whatever those of `numbers` are;
    expanded axes stay expanded.
    """
    # `copy_` refuses memory that several positions share, so an expanded axis is copied
    # once and expanded again.
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)
    kept = numbers.reshape(shape)[once]
    return (
        torch.empty_strided(kept.shape, stride, dtype=numbers.dtype)
        .copy_(kept)
        .expand(shape)
    )


def _laid_out(base: Tensor, memory: tuple[Any, ...]) -> Tensor:
    return with_strides(base, memory[0], memory[1])


class Storage:
    """The memory behind one or more tensors, as versions of a base value."""

    def __init__(self, base: Geometry, name: str | None, *, live: bool) -> None:
        self.live = live  # it depends on the inputs, or changes from call to call
        # whether some view of it is one, or a copy, depends on strides
        self.laid_out_by_chance = False
        self.version = 0
        self.base = base
        self._base_name = name
        self._base_version = 0
        self._writes: list[tuple[Geometry, str]] = []

    def become_live(self, base: Geometry, name: str) -> None:
        """A constant is about to be changed by a value that is none: from now on it is
        the value `name`.
        """
        self.live = True
        self.base, self._base_name, self._base_version, self._writes = (
            base,
            name,
            self.version,
            [],
        )

    def write(self, view: Geometry, name: str) -> None:
        if view.dtype != self.base.dtype:
            raise ValueError("it writes memory that is read as another type")
        self.version += 1
        self._writes.append((view, name))

    def read(self, view: Geometry, emit: Emit) -> str:
        """The value that `view` has now."""
        # The last write covers exactly this view, so its value is the answer.
        if self._writes and self._writes[-1][0] == view:
            return self._writes[-1][1]
        base = self._current_base(emit)
        return self._reshaped(base, self.base, view, emit)

    def _current_base(self, emit: Emit) -> str:
        assert self._base_name is not None
        # Apply the writes in order to the value of the whole memory. A write that
        # covers it all replaces that value without an operation.
        for view, name in self._writes:
            if view == self.base:
                self._base_name = name
            elif view.same_numbers(self.base):
                self._base_name = self._reshaped(name, view, self.base, emit)
            else:
                self._base_name = emit(
                    write_view,
                    (self._base_name, name),
                    (_plain(self.base), _plain(view)),
                    self.base.shape,
                    self.base.dtype,
                )
        # They are part of the base now. Kept as one write, reads of the whole are
        # direct.
        self._writes = [(self.base, self._base_name)] if self._writes else []
        return self._base_name

    def _reshaped(self, name: str, seen: Geometry, wanted: Geometry, emit: Emit) -> str:
        if wanted == seen:
            return name
        if wanted.same_numbers(seen):
            return emit(
                torch.ops.aten.reshape.default,
                (name,),
                (list(wanted.shape),),
                wanted.shape,
                wanted.dtype,
            )
        if wanted.dtype != seen.dtype:
            raise ValueError("it reads memory that was written as another type")
        return emit(
            read_view,
            (name,),
            (_plain(seen), _plain(wanted)),
            wanted.shape,
            wanted.dtype,
        )


def _plain(g: Geometry) -> tuple[Any, ...]:
    return (g.shape, g.stride, g.offset)
