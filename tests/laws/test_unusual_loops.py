"""What loops do between two steps: accumulate, copy, convert, edit. Every method bears
it.
"""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from loops import labels, start, train
from method_zoo import all_legal_chains, chain_id, make, recipe_of

CHAINS = all_legal_chains()
EVERY_CHAIN = pytest.mark.parametrize("chain", CHAINS, ids=map(chain_id, CHAINS))


def skip_if_stochastic(chain):
    if any(getattr(m, "stochastic", False) for m in chain):
        pytest.skip("draws new weights in every pass")


def begun(chain, network="linear"):
    model, x = make(network)
    session, optimizer = start(model, recipe_of(chain))
    train(model, session, optimizer, x, 1)
    session.step(x, labels(x))
    return model, session, x


def assert_pack_is_the_eval_weight(model, session):
    model.eval()
    for name, tensor in session.pack().compressed().items():
        path, _, attribute = name.rpartition(".")
        assert torch.equal(
            tensor.to_dense(), getattr(model.get_submodule(path), attribute)
        ), name


def gradients(model, session, losses):
    """What each latent gets from these losses, each passed back by itself."""
    model.zero_grad()
    for loss in losses:
        loss.backward()
    return {site.name: site.latent.grad.clone() for site in session.sites}


@EVERY_CHAIN
@pytest.mark.parametrize(
    "together", [False, True], ids=["one by one", "both forward first"]
)
def test_two_passes_in_one_step_give_twice_the_gradients_of_one(chain, together):
    skip_if_stochastic(chain)
    model, session, x = begun(chain)
    passes = (model(x).square().mean() for _ in range(2))
    twice = gradients(model, session, list(passes) if together else passes)
    once = gradients(model, session, [model(x).square().mean()])
    for name, grad in once.items():
        assert torch.allclose(twice[name], 2 * grad, rtol=1e-4, atol=1e-7), name


@EVERY_CHAIN
def test_a_model_can_be_copied_between_a_step_and_its_forward_pass(chain):
    model, _, x = begun(chain)
    copied = copy.deepcopy(model).eval()
    assert torch.equal(copied(x), model.eval()(x))


@EVERY_CHAIN
def test_latents_edited_behind_autograd_are_packed_as_they_are_used(chain):
    model, session, x = begun(chain)
    model(x)
    for site in session.sites:
        site.latent.data.mul_(-1.5)
    assert_pack_is_the_eval_weight(model, session)


@EVERY_CHAIN
def test_a_model_converted_to_double_goes_on(chain):
    model, session, x = begun(chain)
    model.double()
    model(x.double()).square().mean().backward()
    assert_pack_is_the_eval_weight(model, session)


@EVERY_CHAIN
def test_a_forward_pass_repeated_for_its_backward_gives_the_same_gradients(chain):
    """Activation checkpointing keeps no activations and runs the forward pass again
    when it needs them.
    """
    skip_if_stochastic(chain)
    grads = []
    for checkpointed in (False, True):
        model, session, x = begun(chain)
        x = x.clone().requires_grad_()
        out = checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
        grads.append(gradients(model, session, [out.square().mean()]))
    for name, grad in grads[0].items():
        assert torch.allclose(grads[1][name], grad, rtol=1e-4, atol=1e-7), name
