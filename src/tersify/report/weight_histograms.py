"""What is in a run's model.terse: the facts of `codec.inspect`, and how often each
level occurs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tersify import codec
from tersify.report.number_text import short
from tersify.tensor import CompressedTensor, code_counts


@dataclass(frozen=True, kw_only=True)
class CodeHistogram:
    """The codes of all tensors with equally many levels, ordered by the value they
    stand for.
    """

    title: str
    labels: list[str]
    counts: list[int]


@dataclass(frozen=True, kw_only=True)
class Contents:
    facts: dict[str, Any]
    codes: list[CodeHistogram]


def read_contents(path: Path) -> Contents:
    return Contents(
        facts=codec.inspect(path),
        codes=code_histograms(codec.open(path).read().compressed()),
    )


def code_histograms(tensors: dict[str, CompressedTensor]) -> list[CodeHistogram]:
    alike: dict[int | None, list[CompressedTensor]] = {}
    for tensor in tensors.values():
        alike.setdefault(tensor.levels, []).append(tensor)
    return [_pooled(levels, group) for levels, group in alike.items()]


def _pooled(levels: int | None, group: list[CompressedTensor]) -> CodeHistogram:
    counts = torch.zeros(levels or 2, dtype=torch.int64)
    for tensor in group:
        counts += code_counts(tensor)[_ascending(tensor)]
    title = "Zeros and survivors" if levels is None else f"Codes of {levels} levels"
    return CodeHistogram(
        title=title, labels=_labels(levels, group), counts=counts.tolist()
    )


def _values(tensor: CompressedTensor) -> Tensor:
    """One value a code; the mean over the slices where each has its own levels."""
    assert tensor.codebook is not None
    book = tensor.codebook.double()
    return book if tensor.axis is None else book.mean(0)


def _ascending(tensor: CompressedTensor) -> Tensor:
    return torch.arange(2) if tensor.codebook is None else _values(tensor).argsort()


def _labels(levels: int | None, group: list[CompressedTensor]) -> list[str]:
    """What the bars of a histogram stand for: values where all tensors share them."""
    # Pruned and not quantized: a code only says whether the weight survived.
    if levels is None:
        return ["0", "kept"]
    # Sorted, as the bars are.
    books = [_values(tensor).sort().values for tensor in group]
    # Only levels that all tensors share exactly can be written below a bar.
    has_one_book = all(tensor.axis is None for tensor in group)
    if has_one_book and _are_equal(books):
        return list(map(short, books[0].tolist()))
    # Ternary weights with levels of their own still agree in their signs.
    if levels == 3 and all(book[1] == 0 for book in books):
        return ["−", "0", "+"]
    return list(map(str, range(1, levels + 1)))


def _are_equal(books: list[Tensor]) -> bool:
    """Whether all tensors have the same levels, to the last bit."""
    return all(torch.equal(book, books[0]) for book in books)
