"""Law 1: pack().to_dense() is bit-equal to the weight the network used in eval mode."""

import pytest
import torch

from loops import STEPS, start, train
from method_zoo import NETWORKS, all_legal_chains, chain_id, fits, make, recipe_of

PAIRS = [
    (chain, network)
    for chain in all_legal_chains()
    for network in NETWORKS
    if fits(chain, network)
]
EVERY_PAIR = pytest.mark.parametrize(
    ("chain", "network"), PAIRS, ids=[f"{chain_id(c)}-{n}" for c, n in PAIRS]
)


def weight_in_use(model: torch.nn.Module, name: str) -> torch.Tensor:
    path, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(path), attribute)


@EVERY_PAIR
def test_packed_weight_is_the_one_the_network_used_in_eval_mode(chain, network):
    model, x = make(network)
    session, optimizer = start(model, recipe_of(chain))
    train(model, session, optimizer, x, STEPS)
    model.eval()
    packed = session.pack()
    assert packed.compressed()
    for name, tensor in packed.compressed().items():
        # equal takes −0.0 for 0.0
        assert torch.equal(tensor.to_dense(), weight_in_use(model, name)), name
    assert set(packed) | set(packed.aliases) == set(make(network)[0].state_dict())


@EVERY_PAIR
def test_baked_network_computes_what_the_session_computed(chain, network):
    model, x = make(network)
    session, optimizer = start(model, recipe_of(chain))
    train(model, session, optimizer, x, 2)
    model.eval()
    before = model(x).detach()
    session.bake_()
    plain, _ = make(network)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(x), before)
    assert torch.equal(plain.eval()(x), before)
