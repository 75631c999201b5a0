"""Nested arguments: the same structure back, containers never edited, and equal
signatures for equal sizes.
"""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch

from tersify.runtime.nested import is_plain, leaves, map_leaves, signature, tensors

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Frozen:
    x: object
    more: dict = field(default_factory=dict)


class Numbers(list):
    pass


@dataclass
class Output(OrderedDict):
    """Like Hugging Face's: a mapping whose items are also fields."""

    logits: object = None
    loss: object = None

    def __post_init__(self):
        for name in ("logits", "loss"):
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)


@pytest.mark.parametrize(
    "nested",
    [
        1,
        (1, [2, {"a": 3}]),
        Pair(1, Pair(2, 3)),
        OrderedDict(b=1, a=[2]),
        Frozen(1, {"y": (2, 3)}),
        Numbers([1, 2]),
        UserDict({"a": 1}),
        [(), [], {}, None, "text", b"bytes", torch.Size([1, 2])],
    ],
)
def test_the_structure_stays_and_nothing_is_edited(nested):
    before = repr(nested)
    same = map_leaves(nested, lambda leaf: leaf)
    assert type(same) is type(nested)
    assert repr(same) == before
    map_leaves(nested, lambda leaf: "changed")
    assert repr(nested) == before


def test_a_mapping_that_is_a_dataclass_keeps_both_faces():
    made = map_leaves(Output(logits=1), lambda leaf: None if leaf is None else leaf + 1)
    assert type(made) is Output
    assert made.logits == made["logits"] == 2
    assert made.loss is None
    assert list(made) == ["logits"]


def test_leaves_come_in_order_and_sizes_text_and_none_are_leaves():
    assert leaves((1, {"b": [2, None], "a": "x"}, torch.Size([3]))) == [
        1,
        2,
        None,
        "x",
        torch.Size([3]),
    ]


def test_tensors_are_found_wherever_they_are():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    found = tensors(Frozen(a, {"k": [b, 3, (c, None)]}))
    assert [x is y for x, y in zip(found, (a, b, c), strict=True)] == [True] * 3


def test_plain_data_is_what_cannot_hide_a_tensor():
    assert all(
        is_plain(leaf)
        for leaf in (None, True, 1, 2.5, 1j, "x", b"x", torch.float32, torch.Size([1]))
    )
    assert not any(
        is_plain(leaf) for leaf in (torch.ones(1), object(), {1}, lambda: 0, iter([]))
    )


def test_nests_of_equal_sizes_have_equal_signatures():
    def nest(n):
        return Frozen((torch.randn(n, 2), 3), {"y": None})

    assert signature(nest(2)) == signature(nest(2))
    assert hash(signature(nest(2))) == hash(signature(nest(2)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, dtype=torch.int64)),
        ((torch.ones(2),), [torch.ones(2)]),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}),
        (1, 2),
        (1, True),
        (1, 1.0),
        (None, 0),
        (Pair(1, 2), (1, 2)),
        ((1, (2, 3)), ((1, 2), 3)),
    ],
)
def test_nests_that_differ_have_different_signatures(one, other):
    assert signature(one) != signature(other)
