"""Weights that lie in one memory, such as `W` and `W.T`, are the same numbers before
and after.
"""

import copy

import pytest
import torch
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Lookup, Prune, Ternary, TernaryWeightNetwork
from tersify.tensor.memory import find_sharing
from tersify.tensor.model import tied

METHODS = {
    "ternary": (Ternary(spread=0.2),),
    "one scale a channel": (TernaryWeightNetwork(per_channel=True),),
    "tables": (Lookup(n=3),),
    "tables of channels": (Lookup(n=3, per_channel=True),),
    "pruned": (Prune(sparsity=0.6),),
    "chain": (Prune(sparsity=0.6), Ternary(spread=0.2)),
}


class AutoEncoder(nn.Module):
    """The decoder's weight is the encoder's, transposed."""

    def __init__(self):
        super().__init__()
        self.down = nn.Linear(8, 5)
        self.up = nn.Linear(5, 8)
        self.up.weight = nn.Parameter(self.down.weight.data.T)

    def forward(self, x):
        return self.up(self.down(x).relu())


class Sliced(nn.Module):
    """Small heads read parts of one matrix, one of them every second column."""

    def __init__(self):
        super().__init__()
        self.whole = nn.Linear(8, 6)
        self.top = nn.Linear(8, 2)
        self.top.weight = nn.Parameter(self.whole.weight.data[:2])
        self.even = nn.Linear(4, 6)
        self.even.weight = nn.Parameter(self.whole.weight.data[:, ::2])

    def forward(self, x):
        return (
            self.whole(x).sum(-1) + self.top(x).sum(-1) + self.even(x[:, ::2]).sum(-1)
        )


class Twins(nn.Module):
    """Two parameters over the same memory, which is not the same as one parameter with
    two names.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = nn.Parameter(self.first.weight.data)

    def forward(self, x):
        return self.second(self.first(x).relu())


class Expanded(nn.Module):
    """One row for every output."""

    def __init__(self):
        super().__init__()
        self.row = nn.Linear(8, 1)
        self.wide = nn.Linear(8, 4)
        self.wide.weight = nn.Parameter(self.row.weight.data.expand(4, 8))

    def forward(self, x):
        return self.row(x) + self.wide(x)


NETWORKS = [AutoEncoder, Sliced, Twins, Expanded]


def recipe_of(methods, weights="*.weight"):
    return Recipe(rules=(Rule(weights=weights, methods=methods),))


def sharing_is_kept(model):
    fresh = find_sharing(dict(type(model)().named_parameters()))
    own = find_sharing(dict(model.named_parameters()))
    return {name: view.of for name, view in own.views.items()} == {
        name: view.of for name, view in fresh.views.items()
    }


@pytest.fixture(params=NETWORKS)
def model(request):
    torch.manual_seed(3)
    return request.param()


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_what_shared_memory_is_packed_as_the_same_numbers_and_shares_again(
    methods, model, tmp_path
):
    x = torch.randn(4, 8)
    packed = tersify.compress_(model, recipe_of(methods))
    expected = model(x)
    assert sharing_is_kept(model)
    state = model.state_dict()
    assert all(
        torch.equal(packed.state_dict()[name] + 0.0, state[name] + 0.0)
        for name in state
    )
    tersify.save(packed, tmp_path / "net.terse")
    again = tersify.load(tmp_path / "net.terse", into=type(model)())
    assert sharing_is_kept(again)
    assert all(
        torch.equal(again.state_dict()[name] + 0.0, state[name] + 0.0) for name in state
    )
    assert torch.equal(again(x), expected)


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_training_uses_one_compressed_weight_for_all_that_share_it(methods, model):
    torch.manual_seed(0)
    session = tersify.attach(model, recipe_of(methods), epochs=1, steps_per_epoch=4)
    optimizer = torch.optim.SGD(session.param_groups(), lr=0.05)
    for _ in range(4):
        x = torch.randn(16, 8)
        session.step(x)
        loss = (model(x) - x.sum(-1, keepdim=True)).square().mean() + session.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    x = torch.randn(4, 8)
    expected, packed = model(x), session.pack()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), expected)
    session.bake_()
    assert sharing_is_kept(model)
    assert all(p.requires_grad for p in model.parameters())
    assert torch.allclose(model(x), expected, atol=1e-6)
    state = model.state_dict()
    assert all(
        torch.equal(packed.state_dict()[name] + 0.0, state[name] + 0.0)
        for name in state
    )


def test_the_gradients_of_all_that_share_memory_reach_it():
    torch.manual_seed(0)
    model, one = AutoEncoder(), AutoEncoder()
    one.load_state_dict(model.state_dict())
    session = tersify.attach(model, recipe_of(METHODS["ternary"]))
    session.step()
    x = torch.randn(3, 8)
    model(x).square().sum().backward()
    used = model.down.weight.detach().clone().requires_grad_()
    hidden = torch.nn.functional.linear(x, used, one.down.bias).relu()
    torch.nn.functional.linear(hidden, used.T, one.up.bias).square().sum().backward()
    assert torch.allclose(session.sites[0].latent.grad, used.grad, atol=1e-5)


def test_a_network_whose_memory_moved_apart_still_ends_with_the_same_numbers():
    torch.manual_seed(0)
    model = AutoEncoder()
    session = tersify.attach(model, recipe_of(METHODS["ternary"]))
    model.double().float()  # torch gives each parameter memory of its own
    assert not find_sharing(dict(model.named_parameters())).views
    session.sites[0].latent.data.add_(0.3)
    session.step()
    packed = session.pack()
    assert torch.equal(
        packed["down.weight"].to_dense(), packed["up.weight"].to_dense().T
    )
    session.bake_()
    assert torch.equal(model.down.weight, model.up.weight.T)


def test_what_shares_memory_and_is_left_dense_is_stored_as_it_is(model, tmp_path):
    bias = next(name for name, _ in model.named_parameters() if name.endswith("bias"))
    packed = tersify.compress_(model, recipe_of(METHODS["ternary"], bias))
    tersify.save(packed, tmp_path / "net.terse")
    again = tersify.load(tmp_path / "net.terse", into=type(model)())
    assert all(
        torch.equal(again.state_dict()[name], value)
        for name, value in model.state_dict().items()
    )


def test_tensors_over_the_same_memory_are_stored_once():
    w = torch.randn(4, 4)
    held, aliases = tied(
        {"a": w, "b": w.detach(), "c": w.T, "d": w.clone(), "e": w[:2]}
    )
    assert list(held) == ["a", "c", "d", "e"]
    assert aliases == {"b": "a"}
    state = {"a": torch.zeros(0), "b": torch.zeros(0)}
    assert tied(state) == (state, {})


def test_weights_that_share_only_a_part_are_refused_before_anything_changes():
    model = nn.ModuleDict({"a": nn.Linear(3, 6), "b": nn.Linear(3, 6)})
    memory = torch.randn(10, 3)
    model["a"].weight, model["b"].weight = (
        nn.Parameter(memory[:6]),
        nn.Parameter(memory[4:]),
    )
    before = list(model.named_parameters())
    with pytest.raises(
        ValueError, match=r"'a.weight' and 'b.weight' share a part of their memory"
    ):
        tersify.attach(model, recipe_of(METHODS["ternary"], "a.weight"))
    assert all(
        a is b for (_, a), (_, b) in zip(model.named_parameters(), before, strict=True)
    )


def test_slices_of_one_memory_that_do_not_meet_are_weights_of_their_own():
    model = nn.ModuleDict({"a": nn.Linear(3, 6), "b": nn.Linear(3, 6)})
    memory = torch.randn(6, 6)
    model["a"].weight, model["b"].weight = (
        nn.Parameter(memory[:, :3]),
        nn.Parameter(memory[:, 3:]),
    )
    packed = tersify.compress_(model, recipe_of(METHODS["ternary"]))
    assert set(packed.compressed()) == {"a.weight", "b.weight"}
    assert torch.equal(packed["b.weight"].to_dense(), model["b"].weight)


def test_an_expanded_weight_alone_is_refused():
    model = nn.Linear(8, 4)
    model.weight = nn.Parameter(torch.randn(1, 8).expand(4, 8))
    with pytest.raises(
        ValueError, match=r"'weight' has several entries in one place of memory.*clone"
    ):
        tersify.attach(model, recipe_of(METHODS["ternary"], "weight"))


def test_a_file_whose_numbers_differ_is_not_loaded_where_they_would_share_memory(
    tmp_path,
):
    apart = AutoEncoder()
    apart.up.weight = nn.Parameter(torch.randn(8, 5))
    tersify.save(apart.state_dict(), tmp_path / "net.terse")
    into = AutoEncoder()
    before = copy.deepcopy(into.state_dict())
    with pytest.raises(
        ValueError, match=r"'up.weight' and 'down.weight' share memory in AutoEncoder"
    ):
        tersify.load(tmp_path / "net.terse", into=into)
    assert all(
        torch.equal(before[name], value) for name, value in into.state_dict().items()
    )


def test_a_file_of_an_untied_network_is_not_loaded_into_a_tied_one(tmp_path):
    def made(is_tied):
        model = nn.ModuleDict(
            {"table": nn.Embedding(6, 4), "head": nn.Linear(4, 6, bias=False)}
        )
        if is_tied:
            model["head"].weight = model["table"].weight
        return model

    tersify.save(made(False).state_dict(), tmp_path / "net.terse")
    with pytest.raises(
        ValueError, match=r"'head.weight' and 'table.weight' share memory in ModuleDict"
    ):
        tersify.load(tmp_path / "net.terse", into=made(True))
    same = made(True)
    same["table"].weight.data[0, 0] = float("nan")
    tersify.save(same.state_dict(), tmp_path / "net.terse")
    again = tersify.load(tmp_path / "net.terse", into=made(True))
    assert again["head"].weight is again["table"].weight
