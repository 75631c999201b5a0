"""Containers that a call brings along: what a forward does to them is seen or refused,
and what they hold outside of their items counts.
"""

from __future__ import annotations

import functools
import threading
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from against_torch import check
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Taking(nn.Module):
    """A layer, and any function of it and of what it is given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor, held: Any = None) -> Any:
        return self.function(self.layer(x), held)


def taking(function: Callable[..., Any]) -> nn.Module:
    return Taking(function).eval()


@dataclass
class Batch:
    x: Any
    mask: Any = None


def appended(y, held):
    held.append(y)
    return torch.stack(held).sum(0)


def kept(y, held):
    held["y"] = y
    return y.cumsum(-1)


def popped(y, held):
    mask = held.pop("mask", None)
    return y if mask is None else y * mask


def reassigned(y, held):
    held.mask = y
    return y * 2


def deeper(y, held):
    held["inner"][0].append(1)
    return y.cumsum(-1)


CHANGES: dict[str, tuple[Callable[..., Any], Callable[[], Any], str]] = {
    "a_list": (appended, lambda: [torch.randn(2, 4)], "the list"),
    "a_dict": (kept, lambda: {"x": torch.randn(2, 4)}, "the dict"),
    "a_dict_without_an_item": (popped, lambda: {"mask": torch.ones(4)}, "the dict"),
    "a_mapping": (kept, lambda: UserDict(x=torch.randn(2, 4)), "the dict"),
    "a_dataclass": (reassigned, lambda: Batch(torch.randn(2, 4)), "the Batch"),
    "one_inside": (deeper, lambda: {"inner": ([],)}, r"the list .*\['inner'\]\[0\]"),
    "order": (lambda y, h: h.reverse() or y, lambda: [1.0, 2.0], "the list"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_forward_that_changes_a_container_it_was_given_is_refused_by_name(change):
    function, made, what = CHANGES[change]
    with pytest.raises(ValueError, match=f"changes {what}.* 'held'"):
        compile(taking(function), (torch.randn(2, 4), made()))
    with pytest.raises(ValueError, match=f"changes {what}.* 'held'"):
        compile(taking(function), {"x": torch.randn(2, 4), "held": made()})


def test_a_container_changed_at_another_size_only_is_refused_there():
    def function(y, held):
        if len(y) > 2:
            held.append(y)
        return y * 2

    model = taking(function)
    fast = compile(model, (torch.randn(2, 4), []))
    check(fast, model, torch.randn(1, 4), [])
    with pytest.raises(ValueError, match="changes the list"):
        fast(torch.randn(3, 4), [])


def test_containers_that_a_forward_only_reads_are_no_matter():
    model = taking(lambda y, held: y + held["x"][0] * len(held))
    made = {"x": [torch.randn(2, 4)], "n": (1, None)}
    fast = compile(model, (torch.randn(2, 4), made))
    check(fast, model, torch.randn(2, 4), made)


def test_a_forward_that_calls_its_own_compiled_network_is_refused_and_never_waits():
    model = taking(lambda y, held: y)
    fast = compile(model, torch.randn(2, 4))
    model.function = lambda y, held: fast(torch.zeros(len(y), 4)) + y
    ended: list[Any] = []

    def call() -> None:
        with pytest.raises(ValueError, match=r"calls itself|compile again"):
            fast(torch.randn(3, 4))
        ended.append(True)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert ended


@dataclass
class Masking:
    """A dataclass with a tensor that is no field."""

    x: Any

    def __post_init__(self) -> None:
        self.mask = (self.x > 0).float()


@dataclass
class Caching:
    x: Any

    @functools.cached_property
    def mask(self) -> Tensor:
        return (self.x > 0).float()


class NoteDict(dict):
    pass


class OwnDict(dict):
    """Its items are its attributes, a well-known trick."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.__dict__ = self


class NoteList(list):
    pass


class Slotted(dict):
    __slots__ = ("mask",)


class Pair(NamedTuple):
    x: Any
    y: Any


class NotePair(Pair):
    pass


def with_mask(made: Any) -> Any:
    made.mask = (torch.rand(2, 4) > 0.5).float()
    return made


def seen_first(made: Any) -> Any:
    made.mask  # noqa: B018  (it is cached by being asked)
    return made


HOLDERS: dict[str, Callable[[], Any]] = {
    "made_by_a_dataclass": lambda: Masking(torch.randn(2, 4)),
    "cached_property": lambda: seen_first(Caching(torch.randn(2, 4))),
    "dict": lambda: with_mask(NoteDict(x=torch.randn(2, 4))),
    "dict_of_its_attributes": lambda: with_mask(OwnDict(x=torch.randn(2, 4))),
    "list": lambda: with_mask(NoteList([torch.randn(2, 4)])),
    "named_tuple": lambda: with_mask(NotePair(torch.randn(2, 4), None)),
    "slots": lambda: with_mask(Slotted(x=torch.randn(2, 4))),
    "other_mapping": lambda: with_mask(UserDict(x=torch.randn(2, 4))),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_tensors_in_attributes_of_a_container_are_inputs(holder):
    model = taking(lambda y, held: y * held.mask)
    fast = compile(model, (torch.randn(2, 4), HOLDERS[holder]()))
    for _ in range(3):
        x, held = torch.randn(2, 4), HOLDERS[holder]()
        with torch.no_grad():
            assert torch.allclose(fast(x, held), model(x, held), atol=1e-6)


@pytest.mark.parametrize("holder", HOLDERS)
def test_other_attributes_of_a_container_are_part_of_the_call(holder):
    def made(factor: float, rows: int = 2) -> Any:
        held = HOLDERS[holder]()
        held.mask = factor
        return held

    model = taking(lambda y, held: y * held.mask)
    fast = compile(model, (torch.randn(2, 4), made(2.0)))
    for factor in (2.0, 3.0, -1.0):
        x, held = torch.randn(2, 4), made(factor)
        with torch.no_grad():
            assert torch.allclose(fast(x, held), model(x, held), atol=1e-6)


def test_an_object_in_an_attribute_of_a_container_is_refused():
    held = NoteDict(x=1)
    held.tokenizer = object()
    with pytest.raises(ValueError, match="an input is a object"):
        compile(taking(lambda y, h: y), (torch.randn(2, 4), held))


def test_a_number_that_carries_attributes_is_refused():
    class Length(int):
        pass

    length = Length(3)
    length.mask = torch.randn(2, 4)
    with pytest.raises(ValueError, match="an input is a Length"):
        compile(taking(lambda y, h: y * h.mask), (torch.randn(2, 4), length))


def test_a_tensor_that_carries_attributes_is_refused():
    def function(y, held):
        return y * getattr(held, "mask", 1)

    fast = compile(taking(function), (torch.randn(2, 4), torch.randn(2, 4)))
    held = torch.randn(2, 4)
    held._marked = True
    fast(torch.randn(2, 4), held)
    held.mask = torch.randn(2, 4)
    x = torch.randn(2, 4)
    for call in (lambda: fast(x, held), lambda: fast(x, held=held)):
        with pytest.raises(ValueError, match="carries 'mask' as an attribute"):
            call()


def test_a_forward_that_writes_on_a_tensor_it_was_given_is_refused():
    def function(y, held):
        held.mask = y
        return y

    with pytest.raises(ValueError, match="sets an attribute of a tensor"):
        compile(taking(function), (torch.randn(2, 4), torch.randn(2, 4)))


def test_a_container_that_holds_itself_is_refused():
    held: list[Any] = []
    held.append(held)
    with pytest.raises(ValueError, match="a container that holds itself"):
        compile(taking(lambda y, h: y), (torch.randn(2, 4), held))


class NoteOutput(dict):
    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.y = named["y"]
        self.double = self.y * 2


@pytest.mark.parametrize("kind", [Masking, lambda y: NoteOutput(y=y)])
def test_tensors_in_attributes_of_a_result_are_those_of_the_call(kind):
    model = taking(lambda y, held: kind(y))
    fast = compile(model, torch.randn(2, 4))
    for _ in range(3):
        x = torch.randn(2, 4)
        with torch.no_grad():
            made, wanted = fast(x), model(x)
        assert type(made) is type(wanted)
        assert vars(made).keys() == vars(wanted).keys()
        for name, right in vars(wanted).items():
            assert torch.allclose(vars(made)[name], right, atol=1e-6)
