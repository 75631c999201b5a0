"""Law 3: stop after any step, restart, finish: the same weights as an unbroken run, bit
for bit.
"""

import pytest
import torch

from loops import STEPS, checkpoint, restore, start, train
from method_zoo import all_legal_chains, chain_id, make, recipe_of

CHAINS = all_legal_chains()


@pytest.mark.parametrize("chain", CHAINS, ids=map(chain_id, CHAINS))
def test_a_run_stopped_after_any_step_ends_with_the_same_weights(chain):
    recipe = recipe_of(chain)
    model, x = make("conv2d")
    session, optimizer = start(model, recipe)
    saved = []
    for _ in range(STEPS):
        saved.append(checkpoint(model, session, optimizer))
        train(model, session, optimizer, x, 1)
    unbroken = model.state_dict()
    for stopped_at, state in enumerate(saved):
        again, _ = make("conv2d", seed=stopped_at + 1)
        session, optimizer = start(again, recipe)
        restore(state, again, session, optimizer)
        train(again, session, optimizer, x, STEPS - stopped_at)
        for name, tensor in again.state_dict().items():
            assert torch.equal(tensor, unbroken[name]), (stopped_at, name)


def test_a_checkpoint_of_another_recipe_is_refused():
    from tersify.methods import BitNet, TernaryWeightNetwork

    model, _ = make("linear")
    session, _ = start(model, recipe_of((BitNet(),)))
    other, _ = make("linear")
    with pytest.raises(ValueError, match="another recipe"):
        start(other, recipe_of((TernaryWeightNetwork(),)))[0].load_state_dict(
            session.state_dict()
        )
