"""Batch norms and biases in few bits."""

import pytest
import torch
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import TernaryTarget
from tersify.norms_in_few_bits import rounded


def network():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 64, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 32, 3, bias=False),
        nn.BatchNorm2d(32),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()
            module.running_var.uniform_(0.2, 3)
    return net, torch.randn(5, 3, 8, 8)


def saved(norms, folder):
    net, x = network()
    recipe = Recipe(
        rules=(Rule(methods=(TernaryTarget(sparsity=0.9, spread=0.2),)),), norms=norms
    )
    session = tersify.attach(net, recipe, steps=1)
    session.step()
    net.eval()
    size = tersify.save(session.pack(), folder / f"{norms}.terse")
    loaded = tersify.load(folder / f"{norms}.terse", into=network()[0]).eval()
    with torch.no_grad():
        wanted, got = net(x), loaded(x)
    return size, float((got - wanted).norm() / wanted.norm())


def test_fewer_bits_make_a_smaller_file_that_computes_nearly_the_same(tmp_path):
    (whole, none), (ten, little), (five, more) = (
        saved(norms, tmp_path) for norms in (None, 10, 5)
    )
    assert none == 0
    assert five < ten < whole - 2 * 4 * 96  # mean and variance are gone, and more
    assert little < 0.01 < more < 0.3


def test_the_recipe_says_it_in_toml():
    text = 'norms = 6\n[[rules]]\nmethods = [{ method = "ternary" }]\n'
    assert Recipe.from_toml(text).norms == 6
    assert Recipe.from_toml(Recipe.from_toml(text).to_toml()).norms == 6
    with pytest.raises(ValueError, match="norms must be"):
        Recipe.from_toml(text.replace("6", "1"))


@pytest.mark.parametrize("bits", [2, 8, 16])
def test_rounding_errs_by_a_step_at_most(bits):
    vector = torch.randn(1000)
    assert float(
        (rounded(vector, bits) - vector).abs().max()
    ) <= 2.0**-bits * 2 * float(vector.abs().max())
    assert len(rounded(vector, bits).unique()) <= 2**bits + 1


def test_norms_have_two_to_sixteen_bits():
    rules = (Rule(methods=(TernaryTarget(),)),)
    for bits in (2, 16):
        assert Recipe(rules=rules, norms=bits).norms == bits
    for bits in (1, 17):
        with pytest.raises(ValueError, match=r"norms must be 2\.\.16"):
            Recipe(rules=rules, norms=bits)
