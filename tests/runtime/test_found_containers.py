"""Containers that check what they are made of: torch's packed sequences, and others of
their kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from against_torch import check
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pad_packed_sequence,
)

from tersify.runtime import compile
from tersify.runtime.capture import CannotCapture
from tersify.runtime.nested import leaves, map_leaves

pytest.importorskip("tersify._runtime")


def packed(*lengths: int) -> PackedSequence:
    return pack_padded_sequence(
        torch.randn(max(lengths), len(lengths), 4), lengths, enforce_sorted=False
    )


class Doubled(nn.Module):
    def forward(self, given: PackedSequence) -> Tensor:
        return given.data * 2


class Replaced(nn.Module):
    def forward(self, given: PackedSequence) -> PackedSequence:
        return given._replace(data=given.data.relu())


class Packing(nn.Module):
    def forward(self, x: Tensor) -> PackedSequence:
        return pack_padded_sequence(x * 2, [x.shape[0]] * x.shape[1])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3)

    def forward(self, given: PackedSequence) -> Tensor:
        return pad_packed_sequence(self.lstm(given)[0])[0]


def test_leaves_are_found_in_containers_that_refuse_to_be_made_of_nothing():
    given = packed(5, 3)
    assert [x is y for x, y in zip(leaves([given]), given, strict=True)] == [True] * 4
    made = map_leaves(given, lambda leaf: leaf if leaf is None else leaf + 1)
    assert type(made) is PackedSequence
    assert torch.equal(made.data, given.data + 1)


@pytest.mark.parametrize("model", [Doubled(), Replaced()])
def test_a_packed_sequence_is_an_input_and_a_result(model):
    fast = compile(model.eval(), (packed(5, 3),))
    for lengths in ((5, 3), (4, 4), (2, 6, 1)):
        check(fast, model, packed(*lengths))


def test_a_packed_sequence_made_by_a_forward_is_its_result():
    model = Packing().eval()
    fast = compile(model, torch.randn(5, 2, 4))
    check(fast, model, torch.randn(5, 2, 4))
    check(fast, model, torch.randn(3, 1, 4))


def test_a_recurrent_layer_that_counts_in_a_packed_sequence_is_right_or_refused():
    model = Recurrent().eval()
    fast = None
    with contextlib.suppress(CannotCapture):  # it reads its sizes from numbers
        fast = compile(model, (packed(5, 3),))
    if fast is not None:
        check(fast, model, packed(4, 4))


class Checked(NamedTuple):
    x: Any
    y: Any


class Positive(Checked):
    """A named tuple that looks at its items."""

    def __new__(cls, x: Tensor, y: Tensor) -> Positive:
        assert x.shape == y.shape
        return super().__new__(cls, x, y)


class Summed(nn.Module):
    def forward(self, given: Positive) -> Positive:
        return Positive(given.x + given.y, given.x * 2)


def test_a_named_tuple_that_looks_at_its_items_is_an_input_and_a_result():
    model = Summed().eval()
    fast = compile(model, (Positive(torch.randn(3), torch.randn(3)),))
    check(fast, model, Positive(torch.randn(3), torch.randn(3)))
    check(fast, model, Positive(torch.randn(5), torch.randn(5)))


class Pairs(list):
    """A list that takes pairs only."""

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        assert len(self) == 2


class First(nn.Module):
    def forward(self, given: Any) -> Tensor:
        return given[0] + given[1]


def test_a_list_that_counts_its_items_is_an_input():
    model = First().eval()
    fast = compile(model, (Pairs([torch.randn(3), torch.randn(3)]),))
    check(fast, model, Pairs([torch.randn(3), torch.randn(3)]))


class Odd(tuple):
    """A tuple that is not made of a sequence."""

    def __new__(cls, x: Any, y: Any) -> Odd:
        return super().__new__(cls, (x, y))


def test_a_tuple_with_a_constructor_of_its_own_is_an_input_with_all_its_attributes():
    model = First().eval()
    fast = compile(model, (Odd(torch.randn(3), torch.randn(3)),))
    x, y = torch.randn(3), torch.randn(3)
    assert torch.equal(fast(Odd(x, y)), x + y)
    given = Odd(1, 2)
    given.name = "kept"
    made = map_leaves(given, lambda leaf: leaf * 2)
    assert (type(made), tuple(made), made.name) == (Odd, (2, 4), "keptkept")


class Frozen(Mapping):
    """A mapping that nobody can update; its items lie in an attribute."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __getitem__(self, key: int) -> Any:
        return self._x[key]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._x)))

    def __len__(self) -> int:
        return len(self._x)


def test_a_mapping_that_cannot_be_updated_is_an_input():
    model = First().eval()
    fast = compile(model, (Frozen([torch.randn(3), torch.randn(3)]),))
    check(fast, model, Frozen([torch.randn(3), torch.randn(3)]))


def test_a_container_that_cannot_be_made_again_is_refused_in_one_sentence():
    given = MappingProxyType({0: torch.randn(3), 1: torch.randn(3)})
    with pytest.raises(ValueError, match="mappingproxy cannot be made again"):
        compile(First().eval(), (given,))


class Largest(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.max(dim=0)


def test_torchs_own_kinds_of_results_stay():
    model = Largest().eval()
    fast = compile(model, torch.randn(3, 2))
    check(fast, model, torch.randn(3, 2))
    assert type(fast(torch.randn(4, 2))) is torch.return_types.max
