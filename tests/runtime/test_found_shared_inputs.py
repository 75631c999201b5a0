"""Inputs that share memory with each other or with the module, where the forward writes
to one of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_torch import compare
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Applied(nn.Module):
    def __init__(self, work: Callable[..., object]) -> None:
        super().__init__()
        self.work = work

    def forward(self, *args: Any, **kwargs: Any) -> object:
        return self.work(*args, **kwargs)


def first_added(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


def second_scaled(x: Tensor, y: Tensor) -> Tensor:
    y.mul_(3)
    return x - y


def both_written(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y.mul_(x)
    return x + y


def nothing_returned(x: Tensor, y: Tensor) -> None:
    x.add_(y)
    y.add_(x)


def through_a_view(x: Tensor, y: Tensor) -> Tensor:
    x[1:].add_(y[1:])
    return y.relu()


def written_and_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.neg_(), y


def same_as_torch(
    fast: Callable[..., Any],
    work: Callable[..., Any],
    memory: Tensor,
    split: Callable[[Tensor], Any],
) -> None:
    """One call with parts of one memory; what torch refuses is refused."""
    theirs = memory.clone()
    wanted = refusal = None
    try:
        wanted = work(*split(theirs))
    except RuntimeError as problem:
        refusal = str(problem)
    if refusal is None:
        compare(fast(*split(memory)), wanted)
    else:
        with pytest.raises(RuntimeError) as raised:
            fast(*split(memory))
        assert str(raised.value) == refusal
    compare(memory, theirs, what="memory after the call")


WRITES = [
    first_added,
    second_scaled,
    both_written,
    nothing_returned,
    through_a_view,
    written_and_returned,
]

# of one memory of 24 numbers: two tensors of 8
SHARED: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "the_same_tensor": lambda t: (t[:8],) * 2,
    "two_views_of_all": lambda t: (t[:8], t[:8]),
    "overlapping_slices": lambda t: (t[:8], t[1:9]),
    "overlapping_slices_the_other_way": lambda t: (t[3:11], t[:8]),
    "interleaved": lambda t: (t[:16:2], t[1:16:2]),
    "every_second_and_the_first": lambda t: (t[:16:2], t[:8]),
    "separate_halves": lambda t: (t[:8], t[8:16]),
    "a_detached_twin": lambda t: (t[:8], t.detach()[:8]),
    "another_storage_object": lambda t: (t[:8], torch.from_numpy(t.numpy()[1:9])),
}


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("work", WRITES)
def test_inputs_that_share_memory_see_each_others_writes(work, shared):
    fast = compile(Applied(work), (torch.randn(8), torch.randn(8)))
    for _ in range(2):
        same_as_torch(fast, work, torch.randn(24), SHARED[shared])
        # and separate ones run as before
        a, b = torch.randn(8), torch.randn(8)
        c, d = a.clone(), b.clone()
        compare(fast(a, b), work(c, d))
        compare((a, b), (c, d))


def test_a_network_compiled_with_one_tensor_twice_is_right_for_two():
    u = torch.randn(8)
    before = u.clone()
    fast = compile(Applied(first_added), (u, u))
    assert torch.equal(u, before)
    a, b = torch.randn(8), torch.randn(8)
    wanted = first_added(a.clone(), b)
    compare(fast(a, b), wanted)
    wanted = first_added(*[u.clone()] * 2)
    compare(fast(u, u), wanted)


def test_inputs_of_another_shape_that_share_memory_are_right():
    def work(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y.sum(0)

    fast = compile(Applied(work), (torch.randn(4), torch.randn(3, 4)))
    for _ in range(2):
        ours = torch.randn(3, 4)
        theirs = ours.clone()
        compare(fast(ours[1], ours), work(theirs[1], theirs))
        compare(ours, theirs)


def test_inputs_in_containers_and_by_keyword_share_memory_too():
    def work(a: dict[str, Any], *, b: Tensor) -> Tensor:
        a["x"][0].add_(1)
        return a["x"][0] * b

    model = Applied(work)

    def call(f: Callable[..., Any], t: Tensor) -> Any:
        return f({"x": [t[:6]]}, b=t[2:8])

    fast = compile(Caller(model), {"a": {"x": [torch.randn(6)]}, "b": torch.randn(6)})
    for _ in range(2):
        ours = torch.randn(8)
        theirs = ours.clone()
        compare(call(lambda a, b: fast(a=a, b=b), ours), call(work, theirs))
        compare(ours, theirs)


class Caller(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, a: Any, b: Any) -> Any:
        return self.inner(a, b=b)


class Counting(nn.Module):
    """Its buffer changes while the input is read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.arange(4.0))

    def forward(self, x: Tensor) -> Tensor:
        before = x * 2
        self.n.add_(1)
        return before + x * self.n


@pytest.mark.parametrize(
    "given",
    [
        lambda m: m.n,
        lambda m: m.n.view(2, 2).view(4),
        lambda m: m.n.detach(),
        lambda m: m.n.flip(0),
    ],
)
def test_a_buffer_that_the_forward_changes_may_be_its_input(given):
    model = Counting().eval()
    twin = copy.deepcopy(model)
    fast = compile(model, torch.randn(4))
    for _ in range(3):
        x = torch.randn(4)
        compare(fast(x), twin(x))
        compare(fast(given(model)), twin(given(twin)))
        compare(model.n, twin.n, what="buffer")


class Writing(nn.Module):
    """Writes to its input, and reads a buffer and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(4))
        self.register_buffer("fixed", torch.ones(4))
        self.linear = nn.Linear(4, 4)
        self.table = torch.full((4,), 2.0)

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        self.n.add_(x)
        return self.linear(x) + self.n * self.fixed + self.table


def test_a_written_input_may_be_a_buffer_that_changes_anyway():
    model = Writing().eval()
    twin = copy.deepcopy(model)
    fast = compile(model, torch.randn(4))
    with torch.no_grad():
        for _ in range(3):
            compare(fast(model.n), twin(twin.n))
            compare(model.n, twin.n, what="buffer")


@pytest.mark.parametrize(
    "given",
    [
        lambda m: m.linear.weight.detach()[1],
        lambda m: m.linear.bias.data,
        lambda m: m.fixed,
        lambda m: m.table,
    ],
)
def test_a_written_input_that_is_a_fixed_tensor_of_the_module_is_refused(given):
    model = Writing().eval()
    before = copy.deepcopy(model.state_dict())
    fast = compile(model, torch.randn(4))
    with pytest.raises(ValueError, match="shares memory with"):
        fast(given(model))
    compare(dict(model.state_dict()), dict(before))
    twin = copy.deepcopy(model)
    x = torch.randn(4)
    with torch.no_grad():
        compare(fast(x.clone()), twin(x.clone()))


def test_a_read_input_may_be_a_weight_of_the_module():
    model = nn.Linear(4, 4).eval()
    fast = compile(model, torch.randn(4, 4))
    with torch.no_grad():
        compare(fast(model.weight), model(model.weight))


def test_a_written_input_that_overlaps_itself_is_refused():
    # torch refuses the first; of the second it makes a number that no order of its
    # additions explains
    fast = compile(Applied(lambda x: x.add_(1) * 2), torch.randn(3, 2))
    with pytest.raises(ValueError, match="share memory"):
        fast(torch.zeros(1, 2).expand(3, 2))
    ours = torch.randn(4)
    with pytest.raises(ValueError, match="cannot be compiled"):
        fast(ours.as_strided((3, 2), (1, 1)))


def test_an_expanded_input_that_is_only_read_is_no_reason_to_complain():
    model = Applied(second_scaled)
    fast = compile(model, (torch.randn(3, 2), torch.randn(3, 2)))
    x, y = torch.randn(1, 2).expand(3, 2), torch.randn(3, 2)
    wanted = model(x, y.clone())
    compare(fast(x, y), wanted)


def test_a_network_that_writes_is_not_traced_as_if_it_did_not():
    fast = compile(Applied(first_added), (torch.randn(8), torch.randn(8)))
    traced = torch.compile(lambda x, y: fast(x, y), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="the forward writes to its inputs"):
        traced(torch.randn(8), torch.randn(8))


def swapped(x: Tensor, y: Tensor) -> None:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def old_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    old = x.clone()
    x.add_(y)
    return old, y.clone()


def copied_then_written(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(y)
    y.zero_()
    return x


@pytest.mark.parametrize("work", [swapped, old_returned, copied_then_written])
def test_old_numbers_of_a_written_input_stay_what_they_were(work):
    fast = compile(Applied(work), (torch.randn(8), torch.randn(8)))
    for _ in range(2):
        a, b = torch.randn(8), torch.randn(8)
        c, d = a.clone(), b.clone()
        compare(fast(a, b), work(c, d))
        compare((a, b), (c, d))
        same_as_torch(fast, work, torch.randn(9), lambda t: (t[:8], t[1:]))
        same_as_torch(fast, work, torch.randn(8), lambda t: (t, t))
