"""What loops do between two steps: accumulate, copy, convert, edit. Every method bears it."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from loops import labels, start, train
from zoo import all_legal_chains, chain_id, make, recipe_of

CHAINS = all_legal_chains()
EVERY_CHAIN = pytest.mark.parametrize("chain", CHAINS, ids=map(chain_id, CHAINS))


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
        assert torch.equal(tensor.to_dense(), getattr(model.get_submodule(path), attribute)), name


@EVERY_CHAIN
def test_gradients_accumulate_over_two_backward_passes_in_one_step(chain):
    if any(getattr(m, "stochastic", False) for m in chain):
        pytest.skip("draws new weights in every pass")
    model, session, x = begun(chain)
    once = []
    for repeats in (1, 2):
        model.zero_grad()
        for _ in range(repeats):
            model(x).square().mean().backward()
        once.append({s.name: s.latent.grad.clone() for s in session.sites})
    for name, grad in once[0].items():
        assert torch.allclose(once[1][name], 2 * grad, rtol=1e-4, atol=1e-7), name


@EVERY_CHAIN
def test_two_forward_passes_may_come_before_their_backward_passes(chain):
    if any(getattr(m, "stochastic", False) for m in chain):
        pytest.skip("draws new weights in every pass")
    model, session, x = begun(chain)
    grads = []
    for repeats in (2, 1):
        model.zero_grad()
        for loss in [model(x).square().mean() for _ in range(repeats)]:
            loss.backward()
        grads.append({s.name: s.latent.grad.clone() for s in session.sites})
    for name, grad in grads[1].items():
        assert torch.allclose(grads[0][name], 2 * grad, rtol=1e-4, atol=1e-7), name


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
    """Activation checkpointing keeps no activations and runs the forward pass again when it needs them."""
    if any(getattr(m, "stochastic", False) for m in chain):
        pytest.skip("draws new weights in every pass")
    grads = []
    for checkpointed in (False, True):
        model, session, x = begun(chain)
        x = x.clone().requires_grad_()
        out = checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
        out.square().mean().backward()
        grads.append({s.name: s.latent.grad.clone() for s in session.sites})
    for name, grad in grads[0].items():
        assert torch.allclose(grads[1][name], grad, rtol=1e-4, atol=1e-7), name
