"""Weights prepared in autocast's type, and gradients that go back through them more
than once.
"""

import copy

import pytest
import torch
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Ternary
from tersify.methods.prepared_slots import forget_prepared

X = torch.linspace(-1, 1, 24).view(4, 6)


def begun():
    """A network whose coming weights wait in bfloat16."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)
    )
    session = tersify.attach(
        model,
        Recipe(rules=[Rule(methods=[Ternary(spread=0.5)])]),
        epochs=9,
        steps_per_epoch=1,
    )
    session.step()
    loss(model)
    session.step()
    with torch.autocast("cpu", torch.bfloat16):
        assert model[0].weight.dtype == torch.bfloat16
    return model, session


def loss(model):
    with torch.autocast("cpu", torch.bfloat16):
        return model(X).float().square().mean()


def grads(session):
    return [site.latent.grad.clone() for site in session.sites]


@pytest.mark.parametrize(
    "passes", ["one by one", "both forward first", "one graph twice"]
)
def test_gradients_of_two_backward_passes_in_one_step_add_up(passes):
    model, session = begun()
    if passes == "one by one":
        for _ in range(2):
            loss(model).backward()
    elif passes == "both forward first":
        for value in [loss(model), loss(model)]:
            value.backward()
    else:
        value = loss(model)
        value.backward(retain_graph=True)
        value.backward()
    both = grads(session)
    model.zero_grad()
    forget_prepared(model)
    loss(model).backward()
    for twice, once in zip(both, grads(session), strict=True):
        assert torch.equal(twice, 2 * once)


def test_a_gradient_given_once_is_not_written_to_again():
    model, session = begun()
    value = loss(model)
    latents = [site.latent for site in session.sites]
    first = torch.autograd.grad(value, latents, retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    torch.autograd.grad(3 * value, latents)
    for gradient, before in zip(first, kept, strict=True):
        assert torch.equal(gradient, before)


def test_a_gradient_can_be_differentiated_again():
    second = []
    for prepared in (True, False):
        model, session = begun()
        if not prepared:
            forget_prepared(model)
        latents = [site.latent for site in session.sites]
        first = torch.autograd.grad(loss(model), latents, create_graph=True)
        second.append(
            torch.autograd.grad(
                sum(gradient.square().sum() for gradient in first), latents
            )
        )
    for made, asked in zip(*second, strict=True):
        assert torch.allclose(made, asked, rtol=0.05, atol=1e-3)
        assert made.abs().sum() > 0


def test_a_layer_that_turns_autocast_off_reads_the_weight_in_its_own_type():
    model, _ = begun()
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert model[0].weight.dtype == torch.float32


def test_a_network_converted_after_the_step_reads_its_weights_anew():
    model, session = begun()
    model.double()
    with torch.autocast("cpu", torch.bfloat16):
        assert model[0].weight.dtype == torch.float64
    session.step()
    assert model(X.double()).dtype == torch.float64


def test_a_deep_copy_reads_its_own_latent():
    model, _ = begun()
    twin = copy.deepcopy(model[0])
    with torch.no_grad():
        twin.parametrizations.weight.original.neg_()
    assert torch.equal(twin.weight, -model[0].weight)


def test_a_replica_of_data_parallel_training_reads_the_latent_it_was_given():
    model, _ = begun()
    replica = model[0]._replicate_for_data_parallel()
    replica._modules["parametrizations"] = copy.deepcopy(model[0].parametrizations)
    with torch.no_grad():
        replica.parametrizations.weight.original.neg_()
    assert torch.equal(replica.weight, -model[0].weight)
