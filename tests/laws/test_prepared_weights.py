"""A weight that the step has prepared is the one its module would compute, until
something it is made of changes.
"""

import copy

import pytest
import torch
from torch import nn

from loops import labels, start, train
from method_zoo import NETWORKS, all_legal_chains, chain_id, fits, make, recipe_of
from tersify.methods import from_table
from tersify.methods.prepared_slots import SlottedChain, forget_prepared

CHAINS = all_legal_chains()
EVERY_CHAIN = pytest.mark.parametrize("chain", CHAINS, ids=map(chain_id, CHAINS))


def begun(chain, network="conv2d", steps=4):
    model, x = make(network)
    session, optimizer = start(model, recipe_of(chain))
    train(model, session, optimizer, x, steps)
    session.step(x, labels(x))
    return model, session, x


def chains_of(model):
    return [module for module in model.modules() if isinstance(module, SlottedChain)]


def skip_if_stochastic(chain):
    if any(getattr(m, "stochastic", False) for m in chain):
        pytest.skip("draws new weights in every pass")


def is_ready(module):
    return module.slot.read(module.original) is not None


def weights_and_gradients(model, session, x):
    """The weight of each chain, and what latents and learned parameters get from one
    backward pass.
    """
    model.zero_grad()
    weights = [module() for module in chains_of(model)]
    loss = model(x).square().mean()
    loss.backward()
    return [w.detach().clone() for w in weights], {
        n: p.grad for n, p in model.named_parameters()
    }


@EVERY_CHAIN
def test_what_is_prepared_is_bit_for_bit_what_the_transforms_compute(chain):
    skip_if_stochastic(chain)
    for network in (n for n in NETWORKS if fits(chain, n)):
        model, session, x = begun(chain, network)
        assert all(map(is_ready, chains_of(model))), network
        prepared, gradients = weights_and_gradients(model, session, x)
        forget_prepared(model)
        computed, expected = weights_and_gradients(model, session, x)
        for a, b in zip(prepared, computed, strict=True):
            assert a.stride() == b.stride()
            assert torch.equal(a, b), network
        for name, gradient in expected.items():
            if gradient is None:
                assert gradients[name] is None, name
            else:
                assert torch.allclose(
                    gradients[name], gradient, rtol=1e-4, atol=1e-6
                ), name


@EVERY_CHAIN
@pytest.mark.parametrize(
    "edit", ["optimizer", "load_state_dict", "in place", "other memory", "state"]
)
def test_a_change_between_a_step_and_its_forward_pass_is_seen(chain, edit):
    skip_if_stochastic(chain)
    model, x = make("conv2d")
    session, optimizer = start(model, recipe_of(chain))
    train(model, session, optimizer, x, 3)
    session.step(x, labels(x))
    model(x).square().mean().backward()
    session.step(x, labels(x))
    other = {
        name: -2 * t if t.is_floating_point() else t
        for name, t in model.state_dict().items()
    }
    if edit == "optimizer":
        optimizer.step()
    elif edit == "load_state_dict":
        model.load_state_dict(
            {
                n: other[n] if n.endswith("original") else t
                for n, t in model.state_dict().items()
            }
        )
    else:
        for site in session.sites:
            with torch.no_grad():
                if edit == "in place":
                    site.latent.mul_(-2)
                elif edit == "other memory":
                    site.latent.data = -2 * site.latent.data
                else:
                    for tensor in (
                        t
                        for link in site.chain
                        for t in (*link.parameters(), *link.buffers())
                    ):
                        if tensor.dtype is torch.bool:
                            tensor.logical_not_()
                        elif tensor.is_floating_point():
                            tensor.neg_()
    used = [module().detach().clone() for module in chains_of(model)]
    forget_prepared(model)
    for a, module in zip(used, chains_of(model), strict=True):
        assert torch.equal(a, module())


@EVERY_CHAIN
def test_state_that_changes_between_two_steps_is_seen_by_the_next(chain):
    """What a step remembers of masks, codes and levels holds only as long as they do."""
    skip_if_stochastic(chain)
    model, session, _ = begun(chain)
    with torch.no_grad():
        for tensor in (
            t for site in session.sites for link in site.chain for t in link.buffers()
        ):
            if tensor.dtype is torch.bool:
                tensor.view(-1)[::2] = False
            elif tensor.is_floating_point():
                tensor.mul_(0.75)
    session._preparations.forget()
    for module in chains_of(model):
        module()  # asked for, so that it is prepared again
    with torch.no_grad():
        session._preparations.run()
    prepared = [module().detach().clone() for module in chains_of(model)]
    forget_prepared(model)
    for a, module in zip(prepared, chains_of(model), strict=True):
        assert torch.equal(a, module())


@EVERY_CHAIN
def test_a_weight_that_nobody_reads_gets_no_gradient(chain):
    """As a branch that a batch does not take: its parameters keep still, whatever the
    optimizer remembers.
    """
    model, x = make("linear")
    unused = nn.Linear(8, 16)
    model = nn.ModuleDict({"net": model, "unused": unused})
    session, _ = (
        start(model, recipe_of(chain, "*.0.weight"))
        if fits(chain, "tied")
        else (None, None)
    )
    if session is None:
        pytest.skip("works on units")
    session.step()
    model["net"](x).square().mean().backward()
    assert all(p.grad is None for p in unused.parameters())


@EVERY_CHAIN
def test_a_copy_of_a_network_and_its_session_trains_on_like_the_original(chain):
    skip_if_stochastic(chain)
    model, x = make("conv2d")
    session, optimizer = start(model, recipe_of(chain))
    train(model, session, optimizer, x, 3)
    twin, its_session = copy.deepcopy((model, session))
    for network, own in ((model, session), (twin, its_session)):
        network.zero_grad()
        own.step(x, labels(x))
        with torch.no_grad():
            for site in own.sites:
                site.latent.mul_(-1.1)
        network(x).square().mean().backward()
    for mine, other in zip(session.sites, its_session.sites, strict=True):
        assert mine.latent is not other.latent
        assert torch.equal(mine.latent.grad, other.latent.grad)


def test_channels_last_weights_stay_so():
    model, x = make("conv2d")
    model.to(memory_format=torch.channels_last)
    session, optimizer = start(model, recipe_of(CHAINS[0]))
    train(model, session, optimizer, x, 2)
    session.step()
    for module in chains_of(model):
        weight = module()
        assert weight.stride() == module.original.stride()
        weight.sum().backward()
        assert module.original.grad.stride() == module.original.stride()


@pytest.mark.parametrize("name", ["binary", "bitnet", "ternary", "twn", "uniform"])
def test_a_network_without_memory_has_its_shapes(name):
    """As a large one is built before its weights are loaded, where the method does not
    look at them.
    """
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to("meta")
    session, _ = start(model, recipe_of((from_table({"method": name}),), "*.weight"))
    for _ in range(2):
        session.step()
        assert model(torch.empty(2, 4, device="meta")).shape == (2, 3)


def test_a_compiled_network_is_not_prepared_for_again():
    model, _ = make("linear")
    session, _ = start(model, recipe_of(CHAINS[0]))
    session.step()
    session.step()
    assert not any(map(is_ready, chains_of(model)))


@EVERY_CHAIN
def test_what_stands_beside_the_weight_does_not_change_it(chain):
    skip_if_stochastic(chain)
    model, session, _ = begun(chain)
    before = [module().detach().clone() for module in chains_of(model)]
    with torch.no_grad():
        for link in (link for site in session.sites for link in site.chain):
            for name in link.beside_the_weight:
                tensor = link.get_buffer(name)
                tensor.copy_(~tensor if tensor.dtype is torch.bool else tensor + 1)
    forget_prepared(model)
    for weight, module in zip(before, chains_of(model), strict=True):
        assert torch.equal(weight, module())


@EVERY_CHAIN
def test_a_network_may_change_its_layout_between_two_steps(chain):
    skip_if_stochastic(chain)
    model, session, x = begun(chain)
    model.to(memory_format=torch.channels_last)
    model(x)  # asked for, so that it is prepared again
    session.step(x, labels(x))
    assert all(map(is_ready, chains_of(model)))
    prepared = [module().detach().clone() for module in chains_of(model)]
    forget_prepared(model)
    for weight, module in zip(prepared, chains_of(model), strict=True):
        assert torch.equal(weight, module())
