"""Energy-based pruning: what the search does to a network, and what it must never do."""

import pytest
import torch
import torch.nn.functional as F
from searching import batch, evaluator_of, session_of, trained_a_little, work_of

from tersify.methods.energy.gates import GateTransform
from tersify.methods.prepared_slots import forget_prepared


def loss_and_gradients(model, session):
    model.train()
    loss = F.cross_entropy(model(batch()[0]), batch()[1])
    loss.backward()
    return [loss.detach(), *(site.latent.grad for site in session.sites)]


@pytest.mark.parametrize("memory_gib", [4.0, 1e-9])
def test_folded_energies_are_those_of_one_candidate_at_a_time(memory_gib):
    model = trained_a_little(torch.float64)
    inputs, targets = batch(torch.float64)
    session = session_of(model, memory_gib=memory_gib)
    evaluator = evaluator_of(session, model, inputs, targets)
    assert (
        evaluator._candidates_at_once() >= 8
        if memory_gib > 1
        else evaluator._candidates_at_once() == 1
    )
    states = torch.rand(8, 36, generator=torch.Generator().manual_seed(1)) < 0.5
    folded = evaluator.energies(states, inputs, targets)
    looped = evaluator.one_by_one(states, inputs, targets)
    assert torch.allclose(folded, looped, rtol=1e-10, atol=1e-12)
    assert folded.std() > 1e-3


@pytest.mark.parametrize(
    "search", ["de", "annealing", "tempering", "genetic", "random"]
)
def test_a_folded_search_selects_what_a_loop_selects(search):
    inputs, targets = batch(torch.float64)
    populations = []
    for fold in (True, False):
        session = session_of(
            trained_a_little(torch.float64), search=search, fold=fold, stagnation=1.0
        )
        for _ in range(12):
            session.step(inputs, targets)
        populations.append(work_of(session).population)
    assert torch.equal(populations[0].states, populations[1].states)
    assert torch.allclose(populations[0].energies, populations[1].energies)


def test_a_silent_unit_gives_exactly_zero_and_the_mask_holds_bias_and_batch_norm():
    model = trained_a_little()
    session = session_of(model)
    session.step(*batch())
    seen = {}
    model.bn2.register_forward_hook(lambda m, a, out: seen.update(bn2=out))
    for mode in (model.train(), model.eval()):
        mode(batch()[0])
        gate = model.bn2.parametrizations.weight[0].gate.mask.bool()
        assert 0 < int(gate.sum()) < 8
        assert (seen["bn2"][:, ~gate] == 0).all()
        assert (seen["bn2"][:, gate] != 0).any()
    assert (model.conv2.weight[~gate] == 0).all()
    assert (model.conv2.bias[~gate] == 0).all()


def test_leaving_a_covered_weight_unmasked_in_training_changes_no_output_and_no_gradient():
    results = []
    for covered in (True, False):
        model = trained_a_little()
        model.drop.p = 0.0
        session = session_of(model, every=1000)
        session.step(*batch())
        for module in (model.conv1, model.conv2):
            assert module.parametrizations.weight[0].covered
            module.parametrizations.weight[0].covered = covered
        results.append(loss_and_gradients(model, session))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_prepared_tensors_are_those_of_the_chain_with_the_same_gradients():
    results = []
    for prepared in (True, False):
        model = trained_a_little()
        model.drop.p = 0.0
        session = session_of(model)
        session.step(*batch())
        gates = [
            link
            for site in session.sites
            for link in site.chain
            if isinstance(link, GateTransform)
        ]
        assert any(not gate.covered for gate in gates)
        assert any(gate.covered for gate in gates)
        if not prepared:
            forget_prepared(model)
        results.append(loss_and_gradients(model, session))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_judging_candidates_leaves_statistics_modes_hooks_and_gradients_alone():
    model = trained_a_little()
    model.train()
    model.bn1.eval()  # a frozen BatchNorm stays frozen
    session = session_of(model)
    before = {
        n: b.clone()
        for n, b in model.named_buffers()
        if "running" in n or "num_batches" in n
    }
    for _ in range(3):
        session.step(*batch())
    after = dict(model.named_buffers())
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert model.training
    assert model.bn2.training
    assert not model.bn1.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("fold", [True, False])
def test_an_exception_in_the_search_leaves_the_model_as_it_was(fold):
    model = trained_a_little()
    broken = []

    def objective(logits, targets):
        if broken:
            raise RuntimeError("a bug in the objective")
        return F.cross_entropy(logits, targets, reduction="none")

    session = session_of(model, objective=objective, fold=fold)
    session.step(*batch())
    masks = {n: b.clone() for n, b in model.named_buffers() if n.endswith("mask")}
    broken.append(True)
    with pytest.raises(RuntimeError, match="a bug in the objective"):
        session.step(*batch())
    assert all(
        torch.equal(b, masks[n]) for n, b in model.named_buffers() if n.endswith("mask")
    )
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(layer.gate.open for layer in work_of(session).layers)
    assert model.training


def test_the_search_stops_at_the_stagnation_threshold_and_the_network_keeps_its_units():
    model = trained_a_little()
    session = session_of(model, stagnation=0.4)
    searching, masks = [], []
    for _ in range(20):
        session.step(*batch())
        searching.append(session.status()["searching"])
        masks.append(
            torch.cat(
                [
                    b
                    for n, b in model.named_buffers()
                    if n.endswith("weight.0.gate.mask")
                ]
            )
        )
    assert searching == [1.0] * 8 + [0.0] * 12
    assert all(torch.equal(mask, masks[-1]) for mask in masks[8:])


def test_a_population_of_one_opinion_ends_the_search_at_the_next_epoch():
    session = session_of(trained_a_little(), steps_per_epoch=4)
    session.step(*batch())
    work_of(session).population.states.copy_(
        work_of(session).population.states[:1].expand(8, -1).clone()
    )
    searching = []
    for _ in range(6):
        session.step(*batch())
        searching.append(session.status()["searching"])
    assert searching == [1.0] * 3 + [0.0] * 3
    assert session.status()["diversity"] == 0


@pytest.mark.parametrize("parents", ["same-batch", "stored"])
def test_stored_energies_are_of_older_batches_and_judged_again_ones_of_this_batch(
    parents,
):
    model = trained_a_little()
    session = session_of(model, parents=parents)
    session.step(*batch())
    session.step(torch.randn(6, 3, 6, 6), batch()[1])
    work = work_of(session)
    inputs = torch.randn(6, 3, 6, 6)
    session.step(inputs, batch()[1])
    fresh = work._engine.evaluator.energies(work.population.states, inputs, batch()[1])
    same = torch.isclose(fresh, work.population.energies, atol=1e-5)
    assert same.all() if parents == "same-batch" else not same.all()


def test_the_last_smaller_batch_of_an_epoch_is_welcome():
    session = session_of(trained_a_little())
    for size in (6, 3, 1):
        session.step(*batch(size=size))
        assert work_of(session).population.energies.isfinite().all()


def test_the_search_improves_the_energy_of_a_network_that_does_not_train():
    session = session_of(trained_a_little(), stagnation=1.0, epochs=30)
    energies = []
    for _ in range(60):
        session.step(*batch())
        energies.append(session.status()["energy"])
    assert energies == sorted(energies, reverse=True)
    assert energies[-1] < energies[0] - 0.03
