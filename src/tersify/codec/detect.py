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
from tersify.codec.entropy import Ints, order0_bits
from tersify.codec.grid import has_scale
from tersify.codec.levels import (
    Levels,
    codebook_of,
    levels_of,
)
from tersify.codec.native import Codes
from tersify.codec.planes import has_few_values
from tersify.codec.steps import steps_of
from tersify.tensor import CompressedTensor, bits_for, code_counts
from tersify.tensor.compressed import same_bits

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
    floats = tensor.is_floating_point() and tensor.layout == torch.strided
    if not floats or tensor.numel() < MIN_ELEMENTS:
        return tensor
    scales = scales and tensor.dtype.itemsize > 1  # there is no product of 8-bit floats
    # Patterns of bits are compared from here on, so −0.0, NaN payloads and denormals
    # survive.
    dense = tensor.detach().cpu().contiguous()
    saved, make = max(
        _forms(dense, scales=scales), key=lambda form: form[0], default=(0.0, None)
    )
    if make is None or saved < MIN_SAVED_BITS:
        return tensor
    made = make()
    # A product is rounded as the machine says: what it gives must be the tensor.
    if made.scale is not None and not same_bits(made.to_dense(), dense):
        return tensor
    return tensor if _rather_repeats(dense, made) else made


def _forms(dense: Tensor, *, scales: bool) -> Iterator[Form]:
    whole = levels_of(dense.reshape(1, -1))
    if whole is not None:
        yield from _one_table(dense, whole)
        # So few levels need at most 4 bits a weight, and a table for each row rarely
        # pays.
        if whole.most <= FEW_LEVELS:
            return
        if scales and has_scale(whole.values()):
            yield from _with_scales(dense, None, whole)
    by_axis = {
        axis: rows
        for axis in range(2)
        if dense.ndim > 1 and (rows := _rows_of(dense, axis, scales=scales)) is not None
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
    kept = _zipped_bits(dense)
    tables = _told_bits(made.codebook) + (
        0 if made.scale is None else _bits(made.scale)
    )
    return kept < order0_bits(code_counts(made).numpy()) + tables


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


def _rows_of(dense: Tensor, axis: int, *, scales: bool) -> Levels | None:
    """The values of each slice of an axis, if they are few or may have a scale."""
    size = dense.shape[axis]
    if size == dense.numel():
        return None
    # The first row is tried alone, because most tensors fail there.
    first = levels_of(dense.select(axis, 0).reshape(1, -1))
    if first is None:
        return None
    if first.most > _most_worth(first.elements) and not (
        scales and has_scale(first.values())
    ):
        return None
    return levels_of(dense.movedim(axis, 0).reshape(size, -1))


def _most_worth(length: int) -> int:
    """How many values a row may have for a codebook of its own: where nearly every
    element is one, a codebook only moves them.
    """
    return length * 3 // 4


def _by_rows(
    dense: Tensor, axis: int, found: Levels, *, scales: bool
) -> Iterator[Form]:
    """A scale or a codebook for each slice of an axis."""
    size = dense.shape[axis]
    # A scale for each row takes one number a row; a codebook takes one for each level.
    if scales:
        yield from _with_scales(dense, axis, found)
    tables = (
        codebook_of(found) if found.most <= _most_worth(dense.numel() // size) else None
    )
    if tables is not None:
        new, books = tables
        yield (
            _saved(found, new, _bits(books)),
            lambda: _compressed(
                dense, found, new, axis=axis, codebook=books, own_rows=True
            ),
        )


def _with_scales(dense: Tensor, axis: int | None, found: Levels) -> Iterator[Form]:
    """A scale for each slice of an axis, or one for all, and whole numbers."""
    stepped = steps_of(found)
    if stepped is None:
        return
    steps, book, scale = stepped
    shape = [found.rows if i == axis else 1 for i in range(dense.ndim)]
    yield (
        _saved(found, steps, _told_bits(book) + _bits(scale)),
        lambda: _compressed(
            dense,
            found,
            steps,
            axis=axis or 0,
            codebook=book,
            scale=scale.reshape(shape),
            own_rows=book.ndim > 1,
        ),
    )


def _saved(found: Levels, codes: Ints, side_bits: float) -> float:
    coded = order0_bits(np.bincount(codes, weights=found.counts))
    return found.dense_bits() - coded - side_bits


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


def _told_bits(codebook: Tensor) -> int:
    """What a codebook takes where its rows repeat each other, and tensors have the same
    one, as it is with whole numbers.
    """
    return min(_bits(codebook), _zipped_bits(codebook))


def _zipped_bits(tensor: Tensor) -> int:
    return 8 * len(zstandard.ZstdCompressor(level=3).compress(_bytes_of(tensor).data))
