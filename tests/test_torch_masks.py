"""Checkpoints of torch's own pruning come in and go out."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import tersify
from tersify import Recipe, Rule
from tersify.methods import Prune, Ternary
from tersify.torch_masks import load_torch_masks, merge_torch_masks, torch_masks


def network():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def pruned_by_torch():
    model = network()
    torch_prune.l1_unstructured(model[0], "weight", amount=0.5)
    torch_prune.random_unstructured(model[2], "bias", amount=1)
    return model


FROZEN = (Prune(schedule="frozen"),)


def session_on(model, methods=FROZEN):
    recipe = Recipe(rules=[Rule(weights=["0.weight", "2.bias"], methods=methods)])
    return tersify.attach(model, recipe, epochs=5, steps_per_epoch=1)


def test_merged_masks_give_the_network_torch_used():
    theirs, x = pruned_by_torch(), torch.randn(4, 6)
    ours = network()
    ours.load_state_dict(merge_torch_masks(theirs.state_dict()))
    assert torch.equal(ours(x), theirs(x))
    assert (ours[0].weight == 0).sum() == 24


def test_a_torch_checkpoint_goes_on_training_with_its_masks():
    theirs, x = pruned_by_torch(), torch.randn(4, 6)
    ours = network()
    session = session_on(ours)
    load_torch_masks(session, theirs.state_dict())
    assert torch.equal(ours(x), theirs(x))
    optimizer = torch.optim.SGD(session.param_groups(), lr=0.1)
    for _ in range(5):
        session.step()
        ours(x).square().mean().backward()
        optimizer.step()
    assert torch.equal(ours[0].weight == 0, theirs[0].weight_mask == 0)
    assert not torch.equal(ours[0].weight, theirs[0].weight)


def test_what_we_export_loads_into_torchs_pruned_network():
    ours, x = network(), torch.randn(4, 6)
    session = session_on(ours, (Prune(sparsity=0.6),))
    session.advance_to_end()
    theirs = network()
    torch_prune.identity(theirs[0], "weight")
    torch_prune.identity(theirs[2], "bias")
    theirs.load_state_dict(torch_masks(session))
    assert torch.equal(theirs(x), ours(x))
    again = network()
    back = session_on(again)
    load_torch_masks(back, theirs.state_dict())
    assert torch.equal(again(x), ours(x))
    assert torch.equal(back.latents()["0.weight"], session.latents()["0.weight"])


def test_a_checkpoint_that_does_not_fit_is_refused():
    session = session_on(network())
    state = pruned_by_torch().state_dict()
    with pytest.raises(
        ValueError, match=r"masks '2.weight', which the recipe does not prune"
    ):
        load_torch_masks(
            session,
            state
            | {"2.weight_orig": torch.ones(3, 8), "2.weight_mask": torch.ones(3, 8)},
        )
    with pytest.raises(ValueError, match="belongs to another network"):
        load_torch_masks(
            session,
            state
            | {"0.weight_orig": torch.ones(2, 2), "0.weight_mask": torch.ones(2, 2)},
        )
    with pytest.raises(
        ValueError, match=r"'3.weight', which the network does not have"
    ):
        load_torch_masks(session, state | {"3.weight": torch.ones(1)})


def test_a_quantized_weight_has_no_torch_mask():
    session = session_on(network(), (Prune(sparsity=0.5), Ternary()))
    session.step()
    with pytest.raises(ValueError, match="is quantized"):
        torch_masks(session)


def test_a_checkpoint_that_lacks_a_tensor_or_has_it_in_another_shape_changes_nothing():
    model = network()
    session = session_on(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = pruned_by_torch().state_dict()
    with pytest.raises(ValueError, match=r"the checkpoint lacks '2.weight'"):
        load_torch_masks(
            session,
            {name: tensor for name, tensor in state.items() if name != "2.weight"},
        )
    with pytest.raises(
        ValueError,
        match=r"'2.weight' has shape \(1, 8\) in the checkpoint and \(3, 8\)",
    ):
        load_torch_masks(session, state | {"2.weight": torch.ones(1, 8)})
    with pytest.raises(
        ValueError,
        match=r"'0.weight' has shape \(1, 6\) in the checkpoint and \(8, 6\)",
    ):
        load_torch_masks(session, state | {"0.weight_orig": torch.ones(1, 6)})
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()
    )


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


@pytest.mark.parametrize("weights", ["a.weight", "a.bias"])
def test_tied_weights_go_out_and_come_back_under_all_their_names(weights):
    ours, x = Tied(), torch.randn(3, 4)
    recipe = Recipe(rules=[Rule(weights=weights, methods=[Prune(sparsity=0.5)])])
    session = tersify.attach(ours, recipe, steps=1)
    session.advance_to_end()
    theirs = Tied()
    for name in [weights, "b.weight"] if weights == "a.weight" else [weights]:
        module, attribute = name.split(".")
        torch_prune.identity(getattr(theirs, module), attribute)
    theirs.load_state_dict(torch_masks(session))
    assert torch.equal(theirs(x), ours(x))
    again = Tied()
    load_torch_masks(tersify.attach(again, recipe, steps=1), theirs.state_dict())
    assert torch.equal(again(x), ours(x))


def test_a_mask_on_one_of_two_modules_that_share_a_weight_is_refused():
    theirs = Tied()
    torch_prune.l1_unstructured(theirs.a, "weight", amount=0.5)
    session = tersify.attach(
        Tied(), Recipe(rules=[Rule(weights="a.weight", methods=FROZEN)])
    )
    with pytest.raises(
        ValueError, match=r"masks 'a.weight' and not 'b.weight', which are one weight"
    ):
        load_torch_masks(session, theirs.state_dict())
