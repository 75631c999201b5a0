"""The laws for quantized activations: every method, on several networks, alone and
beside quantized weights.
"""

import copy

import pytest
import torch
from torch import nn

import tersify
from tersify import Recipe
from tersify.methods import TernaryWeightNetwork
from tersify.methods.inputs import registered_inputs
from tersify.methods.inputs.input_method import input_from_table
from tersify.recipe import InputRule, Rule

VARIANTS = [
    {"method": "uniform", "bits": 4, "range": "observed"},
    {"method": "uniform", "signed": "yes", "bits": 3},
    {"method": "sign", "scaled": True},
]
METHODS = [cls() for cls in registered_inputs().values()] + [
    input_from_table(v) for v in VARIANTS
]


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, stride=2),
        nn.BatchNorm2d(6),
        nn.Hardtanh(),
        nn.Conv2d(6, 4, (3, 2), groups=2),
        nn.Flatten(),
        nn.Linear(4 * 2 * 3, 5),
    )


def perceptron():
    return nn.Sequential(
        nn.Linear(7, 16),
        nn.GELU(),
        nn.Linear(16, 16),
        nn.LayerNorm(16),
        nn.Linear(16, 4),
    )


def signal():
    return nn.Sequential(
        nn.Conv1d(2, 8, 3, dilation=2),
        nn.Tanh(),
        nn.ConvTranspose1d(8, 3, 2),
        nn.Flatten(1),
    )


NETWORKS = {
    "convolutional": (convolutional, (9, 3, 8, 8)),
    "perceptron": (perceptron, (9, 6, 7)),
    "signal": (signal, (9, 2, 12)),
}


def fitting(method, model):
    """The method for every layer it is made for."""
    from tersify.tensor.inputs import LAYERS

    names = []
    for name, module in model.named_modules():
        if isinstance(module, LAYERS):
            try:
                method.check(name, module)
            except ValueError:
                continue
            names.append(name)
    return tuple(names)


CASES = [(m, n) for m in METHODS for n in NETWORKS if fitting(m, NETWORKS[n][0]())]
EVERY_CASE = pytest.mark.parametrize(
    ("method", "network"), CASES, ids=[f"{m.to_table()}-{n}" for m, n in CASES]
)


def begin(method, network, *, ternary=True):
    torch.manual_seed(0)
    build, shape = NETWORKS[network]
    model, x = build(), torch.randn(shape)
    rules = [Rule(methods=[TernaryWeightNetwork()])] if ternary else []
    recipe = Recipe(
        rules=rules,
        inputs=[InputRule(activations=fitting(method, model), methods=[method])],
    )
    session = tersify.attach(
        model, recipe, epochs=2, steps_per_epoch=3, calibration=[(x, None)]
    )
    return model, session, torch.optim.Adam(session.param_groups(), lr=0.01), x


def train(model, session, optimizer, x, steps):
    for _ in range(steps):
        session.step()
        optimizer.zero_grad()
        (model(x).square().mean() + session.penalty()).backward()
        optimizer.step()


@EVERY_CASE
def test_a_loaded_file_computes_what_the_trained_network_computed(
    method, network, tmp_path
):
    model, session, optimizer, x = begin(method, network)
    train(model, session, optimizer, x, 4)
    wanted = model.eval()(x).detach()
    tersify.save(session.pack(), tmp_path / "net.terse")
    loaded = tersify.load(tmp_path / "net.terse", into=NETWORKS[network][0]()).eval()
    assert torch.equal(loaded(x), wanted)
    assert loaded.state_dict().keys() == NETWORKS[network][0]().state_dict().keys()
    assert torch.equal(copy.deepcopy(loaded)(x), wanted)
    session.bake_()
    assert torch.equal(model(x), wanted)


@EVERY_CASE
def test_stopped_and_resumed_training_ends_at_the_same_weights(method, network):
    model, session, optimizer, x = begin(method, network)
    train(model, session, optimizer, x, 5)
    again, second, other, _ = begin(method, network)
    train(again, second, other, x, 2)
    states = [copy.deepcopy(part.state_dict()) for part in (again, second, other)]
    again, second, other, _ = begin(method, network)
    for part, state in zip((again, second, other), states, strict=True):
        part.load_state_dict(state)
    train(again, second, other, x, 3)
    assert all(
        torch.equal(value, model.state_dict()[name])
        for name, value in again.state_dict().items()
    )


@EVERY_CASE
def test_the_weights_behind_a_quantized_input_get_gradients(method, network):
    model, session, _, x = begin(method, network, ternary=False)
    session.step()
    model(x).square().mean().backward()
    assert all(
        p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters()
    )


@EVERY_CASE
def test_a_recipe_with_activations_comes_back_from_toml(method, network):
    _, session, _, _ = begin(method, network)
    assert Recipe.from_toml(session.recipe.to_toml()) == session.recipe


@EVERY_CASE
def test_a_compiled_network_equals_its_module(method, network, tmp_path):
    model, session, optimizer, x = begin(method, network)
    train(model, session, optimizer, x, 2)
    tersify.save(session.pack(), tmp_path / "net.terse")
    loaded = tersify.load(tmp_path / "net.terse", into=NETWORKS[network][0]()).eval()
    wanted = loaded(x).detach()
    assert (
        tersify.compile(loaded, x)(x) - wanted
    ).abs().max() <= 2e-5 * wanted.abs().max()
