"""Optimizers know parameters by their position: compressing a network must not move
them.
"""

import copy

import pytest
import torch
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.lab import network
from tersify.methods import BinaryConnect, Prune, Ternary, TrainedTernary


class Encoder(nn.Module):
    """A small transformer whose output layer is its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 20)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens))).mean(1)


def perceptron():
    return nn.Sequential(
        nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)
    )


def digits():
    return network("digits-cnn", width=0.25)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def tokens():
    return torch.randint(0, 20, (6, 5), generator=torch.Generator().manual_seed(0))


NETWORKS = {
    "perceptron": (perceptron, lambda: torch.randn(6, 8)),
    "convolutions": (digits, lambda: torch.randn(6, 1, 8, 8)),
    "tied embedding": (Encoder, tokens),
    "recurrent": (Recurrent, lambda: torch.randn(6, 5, 8)),
}
METHODS = {
    "ternary": (Ternary(spread=0.2),),
    "binary": (BinaryConnect(),),
    "learned levels": (TrainedTernary(),),
    "pruned and ternary": (Prune(sparsity=0.5), Ternary(spread=0.2)),
}


def names(model):
    return [name for name, _ in model.named_parameters()]


def state_of(model, x, optimizer):
    """The optimizer's state after one step."""
    model(x).square().mean().backward()
    optimizer.step()
    return copy.deepcopy(optimizer.state_dict())


@pytest.fixture(params=list(NETWORKS))
def case(request):
    make, inputs = NETWORKS[request.param]
    torch.manual_seed(0)
    return make(), inputs()


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_compressing_leaves_every_parameter_in_its_place(methods, case):
    model, _ = case
    before = list(model.named_parameters())
    keys = list(model.state_dict())
    tersify.compress_(model, Recipe(rules=(Rule(methods=methods),)))
    after = list(model.named_parameters())
    assert [name for name, _ in after] == [name for name, _ in before]
    assert all(a is b for (_, a), (_, b) in zip(after, before, strict=True))
    assert list(model.state_dict()) == keys


def test_a_recipe_that_cannot_be_attached_leaves_every_parameter_in_its_place(case):
    model, _ = case
    before = names(model)
    with pytest.raises(ValueError, match="matches no weight"):
        tersify.attach(
            model,
            Recipe(
                rules=(
                    Rule(methods=(Ternary(),)),
                    Rule(weights="nowhere*", methods=(Ternary(),)),
                )
            ),
        )
    assert names(model) == before


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_an_optimizers_state_from_before_fits_the_compressed_network(methods, case):
    model, x = case
    optimizer = torch.optim.Adam(model.parameters())
    state = state_of(model, x, optimizer)
    tersify.compress_(model, Recipe(rules=(Rule(methods=methods),)))
    fresh = torch.optim.Adam(model.parameters())
    fresh.load_state_dict(state)
    for parameter, moments in fresh.state.items():
        assert torch.equal(moments["exp_avg"], optimizer.state[parameter]["exp_avg"])


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_an_optimizers_state_from_before_fits_the_attached_network(methods, case):
    """What was saved with the plain network belongs to the same weights in the first
    group of the session's.
    """
    model, x = case
    optimizer = torch.optim.Adam(model.parameters())
    state_of(model, x, optimizer)
    moments = {
        id(parameter): held["exp_avg"].clone()
        for parameter, held in optimizer.state.items()
    }
    weights = list(model.parameters())
    session = tersify.attach(model, Recipe(rules=(Rule(methods=methods),)), steps=100)
    group = session.param_groups()[0]["params"]
    assert all(a is b for a, b in zip(group, weights, strict=True))
    fresh = torch.optim.Adam(group)
    fresh.load_state_dict(optimizer.state_dict())
    assert all(
        torch.equal(fresh.state[p]["exp_avg"], moments[id(p)])
        for p in group
        if p in fresh.state
    )


def test_a_session_that_ends_leaves_every_parameter_in_its_place(case):
    model, x = case
    before = names(model)
    session = tersify.attach(
        model, Recipe(rules=(Rule(methods=METHODS["learned levels"]),))
    )
    optimizer = torch.optim.Adam(session.param_groups())
    session.step(x)
    state_of(model, x, optimizer)
    session.bake_()
    assert names(model) == before
