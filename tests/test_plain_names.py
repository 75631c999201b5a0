"""Checkpoints written while a session is at work."""

import copy
import re

import pytest
import torch
from torch import nn

import tersify
from method_zoo import make, recipe_of
from tersify.methods import BitNet, Prune, Ternary
from tersify.plain_names import without_plain_names


@pytest.mark.parametrize("network", ["conv2d", "linear", "tied", "lstm"])
def test_a_checkpoint_has_the_plain_weights_beside_the_latents(network):
    model, x = make(network)
    names = set(model.state_dict())
    session = tersify.attach(
        model,
        recipe_of((Prune(sparsity=0.5), Ternary(spread=0.2, scale="tensor"))),
        steps=2,
    )
    session.step()
    state = model.state_dict()
    assert names <= set(state)
    plain, _ = make(network, seed=1)
    result = plain.load_state_dict(state, strict=False)
    assert result.missing_keys == []
    assert torch.equal(plain.eval()(x), model.eval()(x))
    packed = session.pack().state_dict()
    assert all(torch.equal(state[name], packed[name]) for name in names)


def test_it_loads_back_into_a_session_and_so_does_one_without_the_plain_names():
    model, x = make("conv2d")
    tersify.attach(model, recipe_of((BitNet(),)))
    for state in (model.state_dict(), without_plain_names(model, model.state_dict())):
        again, _ = make("conv2d", seed=1)
        tersify.attach(again, recipe_of((BitNet(),)))
        again.load_state_dict(state)
        assert torch.equal(again.eval()(x), model.eval()(x))
    assert "0.weight" not in without_plain_names(model, model.state_dict())


def test_plain_weights_alone_are_refused_in_one_sentence():
    model, _ = make("linear")
    plain = copy.deepcopy(model.state_dict())
    tersify.attach(model, recipe_of((BitNet(),)))
    with pytest.raises(
        ValueError,
        match=r"has the plain weight '0\.weight' and not the latent .* load it before attach",
    ):
        model.load_state_dict(plain)


def test_a_part_of_a_larger_network_writes_its_names_with_the_prefix():
    model, _ = make("linear")
    whole = nn.ModuleDict({"part": model})
    tersify.attach(model, recipe_of((BitNet(),)))
    assert torch.equal(whole.state_dict()["part.0.weight"], model[0].weight)
    whole.load_state_dict(whole.state_dict())


def test_a_copy_writes_its_own_weights():
    model, _ = make("linear")
    tersify.attach(model, recipe_of((Ternary(),)))
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied[0].parametrizations.weight.original.zero_()
    assert not copied.state_dict()["0.weight"].any()
    assert model.state_dict()["0.weight"].any()


def test_when_the_session_ends_the_network_is_plain_again():
    model, _ = make("linear")
    names = set(model.state_dict())
    tersify.attach(model, recipe_of((BitNet(),))).bake_()
    assert set(model.state_dict()) == names
    model.load_state_dict(make("linear", seed=1)[0].state_dict())


@pytest.mark.parametrize("network", ["linear", "conv2d", "tied", "lstm"])
def test_a_model_at_work_cannot_be_pickled_and_says_in_one_sentence_what_can(
    network, tmp_path
):
    model, _ = make(network)
    session = tersify.attach(model, recipe_of((BitNet(),)))
    said = "a network in a session cannot be pickled whole: save model.state_dict"
    for network in (model, copy.deepcopy(model)):
        with pytest.raises(RuntimeError, match=re.escape(said)) as raised:
            torch.save(network, tmp_path / "model.pt")
        assert "session.bake_()" in str(raised.value)
    session.bake_()
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_a_parametrization_of_ones_own_keeps_what_torch_says_of_it(tmp_path):
    model = nn.Linear(4, 4)
    model.second = nn.Parameter(torch.randn(4, 4))
    nn.utils.parametrizations.weight_norm(model, "weight")
    tersify.attach(model, recipe_of((BitNet(),), weights="second")).bake_()
    with pytest.raises(RuntimeError, match="Serialization of parametrized modules"):
        torch.save(model, tmp_path / "model.pt")
