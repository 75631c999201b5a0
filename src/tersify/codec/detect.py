"""What a dense tensor really is: few levels, rows of few levels, many zeros, or just
dense. Exact to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import zstandard
from torch import Tensor

from tersify.codec.arrays import SINGLES_BYTES
from tersify.codec.grid import scales_of
from tersify.codec.levels import (
    MAX_LEVELS,
    Ints,
    Levels,
    arrange,
    codebook_of,
    from_bits,
    levels_of,
    order0_bits,
    to_bits,
)
from tersify.codec.native import Codes
from tersify.codec.planes import has_few_values
from tersify.tensor import CompressedTensor, bits_for, code_counts

MIN_ELEMENTS = 64
MIN_SAVED_BITS = 8 * 64  # what a tensor must save before its kind changes
MIN_ZERO_FRACTION = 1 / 64
ZERO_SAMPLE = 1 << 14
MAX_TABLE_FRACTION = 0.1
# up to here one table is the best there is; beyond, rows may have fewer levels each
FEW_LEVELS = 16

# the bits it saves, about, and how it is made
Form = tuple[float, Callable[[], CompressedTensor]]


def detect(tensor: Tensor, *, scales: bool = True) -> CompressedTensor | Tensor:
    """The compressed form of a floating-point tensor where it saves space, and else the
    tensor itself.

    Rows that are whole steps of a scale are looked for if `scales`.
    """
    # a plane holds an 8-bit float as well as codes do
    wide = tensor.is_floating_point() and tensor.dtype.itemsize > 1
    if not wide or tensor.numel() < MIN_ELEMENTS or tensor.layout != torch.strided:
        return tensor
    # Patterns of bits are compared from here on, so −0.0, NaN payloads and denormals
    # survive.
    dense = tensor.detach().cpu().contiguous()
    saved, make = max(
        _forms(dense, scales=scales), key=lambda form: form[0], default=(0.0, None)
    )
    if make is None or saved < MIN_SAVED_BITS:
        return tensor
    made = make()
    return tensor if _rather_repeats(dense, made) else made


def _forms(dense: Tensor, *, scales: bool) -> Iterator[Form]:
    whole = levels_of(dense.reshape(1, -1))
    if whole is not None:
        yield from _one_table(dense, whole)
        # So few levels need at most 4 bits a weight, and a table for each row rarely
        # pays.
        if whole.most <= FEW_LEVELS:
            return
    by_axis = {
        axis: rows
        for axis in range(2)
        if dense.ndim > 1 and (rows := _rows_of(dense, axis)) is not None
    }
    for axis, rows in by_axis.items():
        yield from _by_rows(dense, axis, rows, scales=scales)
    if whole is None:  # survivors of few levels are better off as levels
        yield from _pruned(dense, next(iter(by_axis.values()), None))


def _rather_repeats(dense: Tensor, made: CompressedTensor) -> bool:
    """Whether zstd is smaller than a form that is mostly codebooks: rows that repeat
    look like rows of few levels.
    """
    if made.values is not None:
        return _returning_values_are_shorter(dense, made.values)
    if made.codebook is None or made.levels is None:
        return False
    # Small codebooks: the codes decide the size, and they are coded well.
    if _bits(made.codebook) < MAX_TABLE_FRACTION * made.numel() * bits_for(made.levels):
        return False
    kept = 8 * len(zstandard.ZstdCompressor(level=3).compress(_bytes_of(dense).data))
    tables = [made.codebook, *([] if made.scale is None else [made.scale])]
    return kept < order0_bits(code_counts(made).numpy()) + sum(map(_bits, tables))


def _returning_values_are_shorter(dense: Tensor, survivors: Tensor) -> bool:
    """Whether zstd makes less of an array than of it without its zeros: they are values
    that return, too.
    """
    whole, rest = _bytes_of(dense), _bytes_of(survivors)
    if whole.size > SINGLES_BYTES or not has_few_values(whole, dense.dtype.itemsize):
        return False
    best = zstandard.ZstdCompressor(level=19)
    return len(best.compress(whole.data)) < len(best.compress(rest.data))


def _bytes_of(tensor: Tensor) -> Codes:
    data: Codes = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return data


def _one_table(dense: Tensor, found: Levels) -> Iterator[Form]:
    tables = codebook_of(found)
    assert tables is not None
    new, book = tables
    saved = found.dense_bits() - order0_bits(found.counts) - _bits(book)
    yield saved, lambda: _compressed(dense, found, new, codebook=book[0])


def _rows_of(dense: Tensor, axis: int) -> Levels | None:
    """The values of each slice of an axis, if they are few."""
    size = dense.shape[axis]
    # Where nearly every element of a row is a value of its own a codebook only moves
    # them. The first row is tried alone, because most tensors fail there.
    limit = min(MAX_LEVELS, dense.numel() // size * 3 // 4)
    if limit < 2 or levels_of(dense.select(axis, 0).reshape(1, -1), limit) is None:
        return None
    return levels_of(dense.movedim(axis, 0).reshape(size, -1), limit)


def _by_rows(
    dense: Tensor, axis: int, found: Levels, *, scales: bool
) -> Iterator[Form]:
    """A scale or a codebook for each slice of an axis."""
    size = dense.shape[axis]
    dense_bits = found.dense_bits()
    # A scale for each row takes one number a row; a codebook takes one for each level.
    scaled = _scaled(found) if scales else None
    if scaled is not None:
        steps, book, scale = scaled
        saved = (
            dense_bits
            - order0_bits(np.bincount(steps, weights=found.counts))
            - _bits(book)
            - _bits(scale)
        )
        shape = [size if i == axis else 1 for i in range(dense.ndim)]
        yield (
            saved,
            lambda: _compressed(
                dense,
                found,
                steps,
                axis=axis,
                codebook=book,
                scale=scale.reshape(shape),
            ),
        )
    tables = codebook_of(found)
    if tables is not None:
        new, books = tables
        saved = (
            dense_bits
            - order0_bits(np.bincount(new, weights=found.counts))
            - _bits(books)
        )
        yield (
            saved,
            lambda: _compressed(
                dense, found, new, axis=axis, codebook=books, own_rows=True
            ),
        )


def _scaled(found: Levels) -> tuple[Ints, Tensor, Tensor] | None:
    """A code for each value, one codebook of whole numbers and a scale for each row."""
    values = torch.zeros(found.rows, found.most, dtype=found.dtype)
    known = torch.zeros(found.rows, found.most, dtype=torch.bool)
    row, place = torch.from_numpy(found.row), torch.from_numpy(found.place)
    values[row, place] = found.values()
    known[row, place] = True
    solved = scales_of(values, known)
    if solved is None:
        return None
    scale, steps = solved
    patterns, inverse = np.unique(to_bits(steps[row, place]), return_inverse=True)
    if len(patterns) > MAX_LEVELS:
        return None
    new, book = arrange(patterns, np.zeros(len(patterns), np.int64), 1, found.dtype)
    return new[inverse.reshape(-1)], from_bits(book[0], found.dtype), scale


def _pruned(dense: Tensor, found: Levels | None) -> Iterator[Form]:
    """A mask and the survivors; −0.0 survives, for its sign. `found` holds the values,
    where rows have few.
    """
    flat = dense.reshape(-1)
    # most tensors have no zeros at all, and need not be read to the end
    if flat.numel() > 4 * ZERO_SAMPLE:
        # An odd stride does not fall in step with rows, whose lengths are mostly even.
        sample = flat[:: flat.numel() // ZERO_SAMPLE | 1]
        if int((sample == 0).sum()) < sample.numel() * MIN_ZERO_FRACTION / 4:
            return
    kept = flat != 0
    # -0.0 compares equal to 0.0 but has other bits, which must survive.
    kept |= flat.signbit()
    zeros = flat.numel() - int(kept.count_nonzero())
    if zeros < flat.numel() * MIN_ZERO_FRACTION:
        return
    # The mask costs what the zeros cost among the exponents; the other bits of a zero
    # are saved.
    saved = zeros * 8.0 * (dense.dtype.itemsize - 1)
    if found is not None:
        mask = np.array([zeros, flat.numel() - zeros])
        saved = (
            found.dense_bits() - found.without_zero().dense_bits() - order0_bits(mask)
        )
    codes = kept.to(torch.uint8).reshape(dense.shape)
    yield (
        saved,
        lambda: CompressedTensor(
            shape=tuple(dense.shape), codes=codes, values=flat[kept]
        ),
    )


def _compressed(
    dense: Tensor,
    found: Levels,
    new: Ints,
    *,
    codebook: Tensor,
    axis: int = 0,
    scale: Tensor | None = None,
    own_rows: bool = False,
) -> CompressedTensor:
    # Codes were found with `axis` in front; they go back to its place below.
    moved = (
        (dense.shape[axis], *dense.shape[:axis], *dense.shape[axis + 1 :])
        if dense.ndim
        else ()
    )
    codes = torch.from_numpy(found.relabelled(new)).reshape(moved)
    return CompressedTensor(
        shape=tuple(dense.shape),
        codes=codes.movedim(0, axis).contiguous() if axis else codes,
        codebook=codebook,
        scale=scale,
        axis=axis if own_rows else None,
    )


def _bits(table: Tensor) -> int:
    return table.numel() * table.dtype.itemsize * 8
