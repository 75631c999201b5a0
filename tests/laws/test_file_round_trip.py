"""Law 2, the friendly half: load(save(x)) equals x bit for bit."""

import pytest
import torch

import tersify
from loops import STEPS, start, train
from method_zoo import NETWORKS, all_legal_chains, chain_id, fits, make, recipe_of
from tersify import CompressedTensor
from tersify.methods import Ternary

CHAINS = all_legal_chains()


@pytest.mark.parametrize("chain", CHAINS, ids=map(chain_id, CHAINS))
def test_file_gives_back_every_tensor_bit_for_bit(chain, tmp_path):
    usable = [network for network in ("conv2d", "lstm", "tied") if fits(chain, network)]
    network = usable[len(chain_id(chain)) % len(usable)]
    model, x = make(network)
    session, optimizer = start(model, recipe_of(chain))
    train(model, session, optimizer, x, STEPS)
    packed = session.pack()
    tersify.save(packed, tmp_path / "net.terse")
    opened = tersify.open(tmp_path / "net.terse")
    assert set(opened) == set(packed)
    for name, tensor in packed.items():
        back = opened[name]
        if isinstance(tensor, CompressedTensor):
            assert isinstance(back, CompressedTensor)
            assert back.equal(tensor), name
        else:
            assert torch.equal(back, tensor), name


@pytest.mark.parametrize("network", NETWORKS)
def test_loaded_plain_module_computes_what_the_session_computed(network, tmp_path):
    model, x = make(network)
    session, optimizer = start(model, recipe_of((Ternary(spread=0.2),)))
    train(model, session, optimizer, x, STEPS)
    model.eval()
    tersify.save(session.pack(), tmp_path / "net.terse")
    fresh, _ = make(network, seed=1)
    loaded = tersify.load(tmp_path / "net.terse", into=fresh).eval()
    assert torch.equal(loaded(x), model(x))
