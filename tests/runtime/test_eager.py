"""What no kernel speeds up runs as torch would run it: by usual functions, or as the
module itself.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tersify.runtime import compile, eager
from tersify.runtime.eager import twin
from tersify.runtime.nested import tensors
from tersify.runtime.short_calls import Trial

pytest.importorskip("tersify._runtime")
aten = torch.ops.aten


class Cosine(nn.Module):
    """Torch calls only, and one that eval mode switches off."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.drop((x.cumsum(-1) * self.scale).cos())


@pytest.fixture
def module_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_best_seconds", lambda *works: [1.0, 0.1])


@pytest.fixture
def calls_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_best_seconds", lambda *works: [1.0, 0.99])


def bounds(fast):
    return list(fast._sizes.bounds.values())


@pytest.mark.usefixtures("module_wins")
def test_a_module_that_is_faster_than_its_calls_runs_itself():
    model, x = Cosine(), torch.randn(3, 4)
    fast = compile(model, x)
    assert bounds(fast)[0].module is not None
    assert torch.equal(fast(x), model.eval()(x))
    assert not fast(x).requires_grad
    assert torch.equal(
        fast(torch.ones(5, 4).t().contiguous().t()), model(torch.ones(5, 4))
    )


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.usefixtures("module_wins")
def test_a_recurrent_layer_of_many_items_runs_where_it_is_faster():
    model = Sequence().eval()
    few, many = torch.randn(2, 3, 4), torch.randn(20, 3, 4)
    fast = compile(model, many, threads=1)
    with torch.no_grad():
        assert torch.equal(fast(many), model(many))
        assert (fast(few) - model(few)).abs().max() < 1e-5
    assert [bound.module is None for bound in bounds(fast)] == [False, True]


@pytest.mark.usefixtures("calls_win")
def test_a_recurrent_layer_of_many_items_stays_where_torch_is_no_faster():
    model, x = Sequence().eval(), torch.randn(20, 3, 4)
    fast = compile(model, x, threads=1)
    assert bounds(fast)[0].module is None
    with torch.no_grad():
        assert (fast(x) - model(x)).abs().max() < 1e-5


@pytest.mark.usefixtures("module_wins")
def test_training_the_module_afterwards_does_not_reach_the_compiled_one():
    model, x = Cosine(), torch.randn(30, 40)
    fast = compile(model, x)
    wanted = model.eval()(x)
    model.train()
    assert torch.equal(fast(x), wanted)
    assert model.training


@pytest.mark.usefixtures("calls_win")
def test_recorded_calls_run_where_the_module_is_not_clearly_faster():
    fast = compile(Cosine(), torch.randn(3, 4))
    assert bounds(fast)[0].module is None


def test_hooks_do_not_see_the_calls_that_are_timed(monkeypatch):
    model, x = Cosine(), torch.randn(3, 4)
    seen = []

    def best_seconds(plan, module):
        seen.append(torch.equal(plan(), module()))
        return [1.0, 2.0]

    monkeypatch.setattr(eager, "_best_seconds", best_seconds)
    fast = compile(model, x)
    fast.register_forward_pre_hook(lambda *_: seen.append("called"))
    fast(torch.randn(5, 4))
    assert seen == [True, "called", True]


def test_the_faster_of_two_works_is_told_on_one_thread_and_on_two():
    x = torch.randn(64, 64)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            much, little = eager._best_seconds(
                lambda: [x.sin() for _ in range(20)], lambda: None
            )
            assert little < much
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("module_wins")
def test_a_network_of_kernels_alone_is_never_the_module():
    fast = compile(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), torch.randn(2, 6))
    assert bounds(fast)[0].module is None


class KernelsAndCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, x):
        return self.layers(x).cumsum(-1)


@pytest.mark.usefixtures("module_wins")
def test_a_small_network_that_loses_between_kernels_and_torch_calls_is_the_module(
    costs,
):
    costs(entering=1.0, rows_dense=100.0, vector_dense=100.0)
    model, x = KernelsAndCalls().eval(), torch.randn(2, 6)
    fast = compile(model, x)
    assert {node.in_torch for node in fast.plan.nodes} == {True, False}
    assert bounds(fast)[0].module is not None
    assert torch.equal(fast(x), model(x))


@pytest.mark.usefixtures("module_wins")
def test_int8_between_torch_calls_stays_int8():
    class Signs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(256, 256)

        def forward(self, x):
            return self.layer(x).cumsum(-1)

    model, x = Signs().eval(), torch.randn(1, 256)
    with torch.no_grad():
        model.layer.weight.sign_()
    fast = compile(model, x, precision="int8", calibration=x)
    assert not all(node.in_torch for node in fast.plan.nodes)
    assert bounds(fast)[0].module is None


@pytest.mark.usefixtures("module_wins")
def test_hooks_see_a_network_that_runs_as_its_module():
    model, x = Cosine(), torch.randn(3, 4)
    fast = compile(model, x)
    seen = []
    fast(x)
    fast.register_forward_hook(lambda *_: seen.append(1))
    fast(x)
    assert seen == [1]


@pytest.mark.usefixtures("module_wins")
def test_what_changes_something_is_never_the_module():
    class Counts(Cosine):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return super().forward(x) + self.count

    model = Counts().eval()
    fast = compile(model, torch.ones(2, 2))
    assert bounds(fast)[0].module is None
    first, second = fast(torch.ones(2, 2)), fast(torch.ones(2, 2))
    assert torch.equal(second, first + 1)


def test_a_twin_shares_the_tensors_and_nothing_else():
    model = nn.Sequential(Cosine(), nn.BatchNorm1d(4)).train()
    made = twin(model)
    assert made is not None
    assert made is not model
    assert not made.training
    assert model.training
    assert all(
        a is b for a, b in zip(model.parameters(), made.parameters(), strict=True)
    )


def test_hooks_and_what_cannot_be_copied_have_no_twin():
    hooked, stubborn = Cosine(), Cosine()
    hooked.drop.register_forward_hook(lambda *_: None)
    stubborn.lines = (line for line in ())  # a generator
    assert twin(hooked) is None
    assert twin(stubborn) is None


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (aten.add.Tensor, (torch.ones(3), torch.full((3,), float("nan")))),
        (aten.reshape.default, (torch.ones(4), [2, 2])),
        (aten.linear.default, (torch.ones(2, 3), torch.ones(4, 3))),
        (aten.unbind.int, (torch.ones(2, 3), 1)),
    ],
)
def test_a_function_that_gives_the_same_takes_the_place_of_the_operator(operator, args):
    trial = Trial(operator)
    trial(*args)
    assert trial.best is not operator
    for made, wanted in zip(
        tensors(trial.best(*args)), tensors(operator(*args)), strict=True
    ):
        assert torch.equal(made.nan_to_num(7), wanted.nan_to_num(7))


def test_random_and_foreign_operators_stay_themselves():
    state = torch.get_rng_state()
    for operator, args in (
        (aten.rand_like.default, (torch.ones(3),)),
        (torch.sin, (torch.ones(3),)),
    ):
        trial = Trial(operator)
        torch.set_rng_state(state)
        made = trial(*args)
        torch.set_rng_state(state)
        assert trial.best is operator
        assert torch.equal(made, operator(*args))


def test_a_function_that_gives_something_else_is_not_taken(monkeypatch):
    monkeypatch.setattr(
        "tersify.runtime.short_calls._function_of", lambda target: torch.sin
    )
    trial = Trial(aten.cos.default)
    assert torch.equal(trial(torch.ones(2)), torch.ones(2).cos())
    assert trial.best is aten.cos.default


def test_a_layer_alone_among_torch_calls_goes_to_torch_where_it_gains_too_little(costs):
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x.cumsum(-1)).cumsum(-1)

    model, x = Between().eval(), torch.randn(2, 8)
    costs(entering=1.0, rows_dense=100.0, vector_dense=100.0)
    assert not all(node.in_torch for node in compile(model, x).plan.nodes)
    costs(entering=1e9, rows_dense=100.0, vector_dense=100.0)
    fast = compile(model, x)
    assert all(node.in_torch for node in fast.plan.nodes)
    assert "gains less than it takes to call" in fast.plan.describe()
    assert torch.allclose(fast(x), model(x))
