"""What is one thing to the module is one thing to its compiled network: an input given
twice, an output that is a view of another, a buffer that is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_torch import check
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Of(nn.Module):
    """A layer, a buffer, and any function of them and of what it is given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(4))
        self.function = function

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.function(self, *args, **named)


def of(function: Callable[..., Any]) -> nn.Module:
    return Of(function).eval()


def x(rows: int = 2) -> Tensor:
    return torch.randn(rows, 4)


def if_same(m, a, b):
    return m.layer(a) + b if a is b else m.layer(a) - b


@pytest.mark.parametrize("twice_first", [True, False])
def test_an_input_given_twice_is_told_from_two_equal_ones(twice_first):
    model, a = of(if_same), x()
    fast = compile(model, (a, a) if twice_first else (a, x()))
    for _ in range(3):
        check(fast, model, a, a.clone())
        with torch.no_grad():
            assert torch.allclose(fast(a, a), model(a, a), atol=1e-6)
    with torch.no_grad():
        b = x(3)
        assert torch.allclose(fast(b, b), model(b, b), atol=1e-6)
        assert torch.allclose(fast(b=b, a=b), model(b=b, a=b), atol=1e-6)


def test_an_input_in_two_places_of_a_container_is_told_from_two_equal_ones():
    model = of(lambda m, held: if_same(m, held["a"][0], held["b"]))
    a, b = x(), x()
    fast = compile(model, ({"a": [a], "b": a},))
    for held in ({"a": [a], "b": b}, {"a": [a], "b": a}, {"a": [b], "b": b}):
        with torch.no_grad():
            assert torch.allclose(fast(held), model(held), atol=1e-6)


def test_a_container_given_twice_is_told_from_two_equal_ones():
    model = of(lambda m, a, b: m.layer(a[0]) * (2 if a is b else 3))
    one = [x()]
    fast = compile(model, (one, list(one)))
    with torch.no_grad():
        for given in ((one, one), (one, list(one)), (one, [x()])):
            assert torch.allclose(fast(*given), model(*given), atol=1e-6)


def test_an_input_given_twice_that_is_written_to_is_written_once():
    def function(m, a, b):
        a.mul_(2)
        return m.layer(b)

    model, a = of(function), x()
    fast = compile(model, (x(), x()))
    ours, theirs = a.clone(), a.clone()
    with torch.no_grad():
        assert torch.allclose(fast(ours, ours), model(theirs, theirs), atol=1e-6)
    assert torch.equal(ours, theirs)


def test_signs_of_zeros_and_kinds_of_keys_make_calls_differ():
    model = of(lambda m, a, n: torch.copysign(m.layer(a), torch.full((), n)))
    fast = compile(model, (x(), 0.0))
    for n in (0.0, -0.0, 0.0):
        check(fast, model, x(), n)
    model = of(lambda m, a, d: m.layer(a) * (2 if True is next(iter(d)) else 1))
    fast = compile(model, (x(), {1: 0}))
    for d in ({1: 0}, {True: 0}, {1.0: 0}):
        check(fast, model, x(), d)


def test_the_order_of_a_forward_s_own_keywords_counts():
    model = of(lambda m, **named: m.layer(next(iter(named.values()))))
    fast = compile(model, {"b": x(), "a": x()})
    check(fast, model, b=x(), a=x())
    check(fast, model, a=x(), b=x())


def same_after_edits(model: nn.Module, *inputs: Any, calls: int = 3) -> None:
    """Each result is edited in turn, by us and in the module's: all else must change in
    the same way.
    """
    import copy

    from tersify.runtime.nested import tensors

    twin = copy.deepcopy(model)
    fast = compile(model, copy.deepcopy(inputs))
    for turn in range(calls):
        ours, theirs = copy.deepcopy((inputs, inputs))
        with torch.no_grad():
            made, wanted = fast(*ours), twin(*theirs)
            for place in range(len(tensors(wanted))):
                sides = (made, ours, model), (wanted, theirs, twin)
                for result, _, _ in sides:
                    edited = tensors(result)[place]
                    if not (edited.stride() and 0 in edited.stride()):
                        edited.zero_()
                for a, b in zip(*map(everything, sides), strict=True):
                    assert torch.allclose(a, b, atol=1e-5), (turn, place)


def everything(side: tuple[Any, Any, nn.Module]) -> list[Tensor]:
    from tersify.runtime.nested import tensors

    result, inputs, model = side
    return [*tensors((result, inputs)), *model.state_dict().values()]


def counted(m, a):
    m.state.add_(m.layer(a).mean(0))
    return m.state


def transposed(m, a):
    y = m.layer(a[None]).transpose(1, 2)
    return y, y[..., 0], y[:, :2]


RESULTS: dict[str, Callable[..., Any]] = {
    "input": lambda m, a: (a, m.layer(a)),
    "input_alone": lambda m, a: a,
    "view_of_an_input": lambda m, a: (a[:, :2], m.layer(a)),
    "view_of_an_input_alone": lambda m, a: a.t()[1:],
    "input_that_was_written": lambda m, a: (a.relu_(), m.layer(a)),
    "detached_input": lambda m, a: (a.detach(), m.layer(a)),
    "copy_of_an_input": lambda m, a: (a.clone(), m.layer(a)),
    "view_of_another": lambda m, a: (lambda y: (y, y[:, 0]))(m.layer(a)),
    "shape_of_another": lambda m, a: (lambda y: (y, y.view(-1)))(m.layer(a)),
    "view_before_its_base": lambda m, a: (lambda y: (y[0], y))(m.layer(a)),
    "one_twice": lambda m, a: (lambda y: (y, y))(m.layer(a)),
    "one_detached": lambda m, a: (lambda y: (y, y.detach()))(m.layer(a)),
    "one_copied": lambda m, a: (lambda y: (y, y.clone()))(m.layer(a)),
    "halves": lambda m, a: m.layer(a).chunk(2, -1),
    "rows_that_meet": lambda m, a: (lambda y: (y[:-1], y[1:]))(m.layer(a)),
    "other_type": lambda m, a: (lambda y: (y, y.view(torch.int32)))(m.layer(a)),
    "transposed_with_views": transposed,
    "expanded": lambda m, a: (lambda y: (y, y[:, :1].expand(-1, 3)))(m.layer(a)),
    "state": counted,
    "state_beside": lambda m, a: (counted(m, a), m.layer(a)),
    "view_of_state": lambda m, a: (counted(m, a)[:2], m.layer(a)),
    "buffer": lambda m, a: (m.layer(a), m.state),
    "made_constant": lambda m, a: (m.layer(a), torch.arange(4.0)),
    "made_constant_alone": lambda m, a: torch.arange(4.0),
    "made_constant_that_is_read": lambda m, a: (lambda p: (m.layer(a) * p, p, p[1:]))(
        torch.arange(4.0)
    ),
    "constant_of_weights": lambda m, a: {"y": m.layer(a), "w": m.layer.weight.abs()},
    "constant_like_an_input": lambda m, a: (m.layer(a), torch.ones(4, 4).view_as(a)),
}


@pytest.mark.parametrize("result", RESULTS)
def test_edits_of_results_reach_what_they_reach_in_the_module(result):
    same_after_edits(of(RESULTS[result]), x(4))


@pytest.mark.parametrize("result", ["view_of_an_input", "input", "detached_input"])
def test_results_share_the_memory_of_inputs_of_any_layout(result):
    same_after_edits(of(RESULTS[result]), x(4).t())
    same_after_edits(of(RESULTS[result]), torch.randn(4, 8)[:, ::2])


def test_a_result_that_is_an_input_only_where_it_lies_in_order_is_both():
    for function in (
        lambda m, a: (a.t().reshape(-1), m.layer(a)),
        lambda m, a: (a.t().contiguous(), m.layer(a)),
        lambda m, a: (a.contiguous(), m.layer(a)),
    ):
        same_after_edits(of(function), x(4))
        same_after_edits(of(function), x(4).t())


def test_a_returned_parameter_is_the_parameter_itself():
    model = of(lambda m, a: (m.layer(a), m.layer.weight, m.layer.weight.t()[0]))
    fast = compile(model, x())
    _, weight, column = fast(x())
    assert weight is model.layer.weight
    assert column.data_ptr() == weight.data_ptr()
    assert fast(x())[2] is not column


def test_a_container_returned_twice_is_one():
    def function(m, a):
        held = {"y": m.layer(a)}
        return held, [held]

    first, (second,) = compile(of(function), x())(x())
    assert first is second


def test_an_operator_of_torch_returns_memory_of_its_own():
    fast = compile(of(lambda m, a: (a, m.layer(a), m.state)), x())
    a = x()
    made = fast.run_flat([a])
    assert len({t.untyped_storage().data_ptr() for t in (a, *made)}) == 4
    assert torch.equal(made[0], a)
