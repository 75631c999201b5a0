"""Energy-based pruning: what the search does to a network, and what it must never do."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Energy
from tersify.methods.energy import full_network
from tersify.methods.energy.gates import GateTransform


class Residual(nn.Module):
    """Convolutions with and without BatchNorm, a shortcut, and a hidden linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.hidden = nn.Linear(8, 12)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.head(self.drop(F.relu(self.hidden(x.mean((2, 3))))))


def trained_a_little(dtype=torch.float32):
    torch.manual_seed(0)
    model = Residual().to(dtype)
    for _ in range(3):
        model(torch.randn(16, 3, 6, 6, dtype=dtype))  # running statistics that are not the first ones
    with torch.no_grad():
        for norm in (model.bn1, model.bn2):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_()
    return model


def batch(dtype=torch.float32, size=6):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(size, 3, 6, 6, generator=generator, dtype=dtype), torch.arange(size) % 4


def session_of(model, epochs=10, steps_per_epoch=2, example=None, **settings):
    recipe = Recipe(rules=[Rule(methods=[Energy(**settings)])])
    return tersify.attach(model, recipe, epochs=epochs, steps_per_epoch=steps_per_epoch, example=example)


def work_of(session):
    return session._work[0].bound.shared


def evaluator_of(session, model, inputs, targets):
    session.step(inputs, targets)
    return work_of(session)._engine.evaluator


@pytest.mark.parametrize("memory_gib", [4.0, 1e-9])
def test_folded_energies_are_those_of_one_candidate_at_a_time(memory_gib):
    model = trained_a_little(torch.float64)
    inputs, targets = batch(torch.float64)
    session = session_of(model, memory_gib=memory_gib)
    evaluator = evaluator_of(session, model, inputs, targets)
    assert evaluator._candidates_at_once() >= 8 if memory_gib > 1 else evaluator._candidates_at_once() == 1
    states = torch.rand(8, 36, generator=torch.Generator().manual_seed(1)) < 0.5
    folded = evaluator.energies(states, inputs, targets)
    looped = evaluator.one_by_one(states, inputs, targets)
    assert torch.allclose(folded, looped, rtol=1e-10, atol=1e-12)
    assert folded.std() > 1e-3


@pytest.mark.parametrize("search", ["de", "annealing", "tempering", "genetic", "random"])
def test_a_folded_search_selects_what_a_loop_selects(search):
    inputs, targets = batch(torch.float64)
    populations = []
    for fold in (True, False):
        session = session_of(trained_a_little(torch.float64), search=search, fold=fold, stagnation=1.0)
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
        model.train()
        loss = F.cross_entropy(model(batch()[0]), batch()[1])
        loss.backward()
        results.append([loss.detach(), *(s.latent.grad for s in session.sites)])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_tensors_masked_ahead_are_those_of_the_chain_with_the_same_gradients():
    results = []
    for ahead in (True, False):
        model = trained_a_little()
        model.drop.p = 0.0
        session = session_of(model)
        session.step(*batch())
        gates = [site.chain[0] for site in session.sites if hasattr(site.chain[0], "ahead")]
        assert all(gate.covered or gate.ahead.get(site.latent) is not None
                   for site in session.sites if (gate := site.chain[0]) in gates)  # fmt: skip
        if not ahead:
            for gate in gates:
                gate.ahead.drop()
        model.train()
        loss = F.cross_entropy(model(batch()[0]), batch()[1])
        loss.backward()
        results.append([loss.detach(), *(s.latent.grad for s in session.sites)])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_judging_candidates_leaves_statistics_modes_hooks_and_gradients_alone():
    model = trained_a_little()
    model.train()
    model.bn1.eval()  # a frozen BatchNorm stays frozen
    session = session_of(model)
    before = {n: b.clone() for n, b in model.named_buffers() if "running" in n or "num_batches" in n}
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
    assert all(torch.equal(b, masks[n]) for n, b in model.named_buffers() if n.endswith("mask"))
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
        masks.append(torch.cat([b for n, b in model.named_buffers() if n.endswith("weight.0.gate.mask")]))
    assert searching == [1.0] * 8 + [0.0] * 12
    assert all(torch.equal(mask, masks[-1]) for mask in masks[8:])


def test_a_population_of_one_opinion_ends_the_search_at_the_next_epoch():
    session = session_of(trained_a_little(), steps_per_epoch=4)
    session.step(*batch())
    work_of(session).population.states.copy_(work_of(session).population.states[:1].expand(8, -1).clone())
    searching = []
    for _ in range(6):
        session.step(*batch())
        searching.append(session.status()["searching"])
    assert searching == [1.0] * 3 + [0.0] * 3
    assert session.status()["diversity"] == 0


@pytest.mark.parametrize("parents", ["same-batch", "stored"])
def test_stored_energies_are_of_older_batches_and_judged_again_ones_of_this_batch(parents):
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


def test_kept_share_counts_what_active_units_own_and_respects_its_bound():
    model = trained_a_little()
    total = sum(p.numel() for p in model.parameters())
    session = session_of(model, keep=0.6)
    for _ in range(5):
        session.step(*batch())
        kept = session.status()["kept"]
        assert kept <= 60.0
        assert kept == pytest.approx(100 * sum(_owned(session, total)) / total)


def _owned(session, total):
    compressed = session.pack().compressed().values()
    yield from (int(tensor.codes.sum()) for tensor in compressed)
    yield total - sum(tensor.numel() for tensor in compressed)


def test_a_fixed_number_of_units_is_kept_exactly():
    session = session_of(trained_a_little(), keep=0.5, count="units", bound="exactly", init=0.1)
    for _ in range(5):
        session.step(*batch())
        assert (work_of(session).population.states.sum(1) == 18).all()


def test_a_heavier_size_weight_keeps_fewer_parameters():
    kept = []
    for weight in (0.0, 100.0):
        session = session_of(trained_a_little(), size_weight=weight, stagnation=1.0, search="genetic", flip=0.05)
        for _ in range(20):
            session.step(*batch())
        kept.append(session.status()["kept"])
    assert kept[1] < kept[0] - 10


def test_the_layer_that_gives_the_output_stays_whole_and_a_rule_for_it_alone_is_refused():
    model = trained_a_little()
    session = session_of(model)
    session.step(*batch())
    assert session.pack()["head.weight"].codes.all()
    with pytest.raises(ValueError, match="names no layer that has any"):
        tersify.attach(trained_a_little(), Recipe(rules=[Rule(weights="head.weight", methods=[Energy()])]))


def test_rows_make_a_head_of_a_value_projection_one_unit():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    session = session_of(model, rows=4)
    session.step(torch.randn(5, 6), torch.arange(5) % 3)
    assert work_of(session).population.states.shape == (8, 3)
    silent = (model[0].weight == 0).all(1).view(3, 4)
    assert (silent.all(1) == silent.any(1)).all()
    with pytest.raises(ValueError, match="12 rows, which are not units of 5"):
        session_of(nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 3)), rows=5)


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 12)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.hidden = nn.Linear(12, 20)
        self.head = nn.Linear(20, 4)

    def forward(self, x):
        x = self.embed(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(F.relu(self.hidden(x.mean(1))))


@pytest.mark.parametrize("kind", ["residual", "attention"])
def test_coupled_units_go_together_and_are_judged_like_one_by_one(kind):
    if kind == "residual":
        model, (inputs, targets) = trained_a_little(torch.float64), batch(torch.float64)
    else:
        torch.manual_seed(0)
        model, inputs, targets = Attends().double(), torch.randn(6, 5, 6, dtype=torch.float64), torch.arange(6) % 4
    session = session_of(model, coupled=True, example=inputs[:2])
    evaluator = evaluator_of(session, model, inputs, targets)
    units = work_of(session).population.states.shape[1]
    states = torch.rand(8, units, generator=torch.Generator().manual_seed(1)) < 0.5
    folded = evaluator.energies(states, inputs, targets)
    assert torch.allclose(folded, evaluator.one_by_one(states, inputs, targets), rtol=1e-10, atol=1e-12)
    assert folded.std() > 1e-3
    if kind == "residual":  # stem and second block meet in an addition
        assert units == 8 + 8 + 12
        silent = (model.stem.weight == 0).flatten(1).all(1)
        assert torch.equal(silent, (model.bn2.weight == 0))
    else:
        assert {layer.size for layer in work_of(session).layers} == {12, 3, 20}
        rows = (model.attention.in_proj_weight == 0).all(1).view(3, 3, 4)
        assert (rows.all(2) == rows.any(2)).all(), "a head goes whole"
        assert (rows[0] == rows[2]).all(), "and with its queries, keys and values"


def test_coupled_units_need_an_example():
    with pytest.raises(ValueError, match="give attach\\(…, example=inputs\\)"):
        session_of(trained_a_little(), coupled=True)


@pytest.mark.parametrize("coupled", [False, True])
def test_a_searched_network_shrinks_to_what_it_keeps(coupled):
    model = trained_a_little()
    inputs, targets = batch()
    session = session_of(model, keep=0.5, coupled=coupled, example=inputs[:2])
    for _ in range(4):
        session.step(inputs, targets)
    session.bake_()
    small = tersify.shrink(model.eval(), inputs)
    assert torch.allclose(small(inputs), model(inputs), atol=1e-5)
    sizes = [sum(p.numel() for p in net.parameters()) for net in (small, model)]
    assert sizes[0] < 0.6 * sizes[1]


def test_the_full_network_is_the_one_with_all_units_active():
    model = trained_a_little().eval()
    full = model(batch()[0])
    session = session_of(model)
    session.step(*batch())
    pruned = model(batch()[0])
    with full_network(model) as layers:
        assert layers == 4
        assert torch.allclose(model(batch()[0]), full)
    assert torch.equal(model(batch()[0]), pruned)
    assert not torch.allclose(pruned, full)


def test_the_last_smaller_batch_of_an_epoch_is_welcome():
    session = session_of(trained_a_little())
    session.step(*batch())
    session.step(*batch(size=3))
    session.step(*batch(size=1))


def test_a_layer_that_would_lose_all_units_keeps_one_and_the_status_says_so():
    model = nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3))
    session = session_of(model, init=0.05)
    session.step(torch.randn(5, 6), torch.arange(5) % 3)
    assert session.status()["revived"] > 0
    assert all(layer.gate.mask.any() for layer in work_of(session).layers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"population": 3}, "population \\(S\\) must be a whole number of at least 4, got 3"),
        ({"init": 1.0}, "init \\(P\\) must lie between 0 and 1, got 1.0"),
        ({"init": 0.0}, "init"),
        ({"mutation": 0.0}, "mutation"),
        ({"search": "gradient"}, "search must be one of de, annealing"),
        ({"objective": "accuracy"}, "objective must be one of margin"),
        ({"keep": 1.5}, "keep"),
        ({"parents": "old"}, "parents must be one of same-batch, stored"),
        ({"bound": "below"}, "bound must be one of"),
        ({"tournament": 9}, "tournament"),
        ({"population": 4.5}, "population .S. must be a whole number of at least 4, got 4.5"),
        ({"tournament": 2.5}, "tournament must be 2..8, got 2.5"),
        ({"every": 1.5}, "every must be a whole number of at least 1, got 1.5"),
        ({"rows": True}, "rows must be a whole number of at least 1, got True"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
    ],
)
def test_a_wrong_setting_is_refused_at_birth(settings, message):
    with pytest.raises(ValueError, match=message):
        Energy(**settings)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (lambda logits, targets: logits, "one energy for each of the"),
        (lambda logits, targets: 1.0, "got a float"),
        (lambda logits, targets: logits[:, 0] * float("nan"), "not finite"),
        (lambda logits, targets: logits.mean() / 0, "not finite"),
    ],
)
def test_an_objective_of_wrong_shape_or_without_a_number_is_refused(objective, message):
    model = trained_a_little()
    session = session_of(model, objective=objective)
    with pytest.raises(ValueError, match=message):
        session.step(*batch())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.randn(4, 3, 6, 6), None), "got no targets"),
        ((None, torch.arange(4)), "got no inputs"),
        ((torch.randn(4, 3, 6, 6), torch.arange(3)), "equally many"),
        ((torch.randn(0, 3, 6, 6), torch.arange(0)), "not none"),
        (({"x": 1}, torch.arange(3)), "inputs must be one tensor, got a dict"),
    ],
)
def test_a_batch_without_labels_or_of_unequal_parts_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        session_of(trained_a_little()).step(*arguments)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, -100, 1, 2]), "targets must be classes 0..3, got -100..2"),
        (torch.tensor([0, 4, 1, 2]), "targets must be classes 0..3, got 0..4"),
        (torch.eye(4), "one class number for each sample, whole numbers of shape .4,., got torch.float32 of .4, 4."),
        (torch.zeros(4, 1, dtype=torch.int64), "got torch.int64 of .4, 1."),
    ],
)
def test_targets_that_are_no_classes_are_refused_before_the_device_sees_them(targets, message):
    with pytest.raises(ValueError, match=message):
        session_of(trained_a_little()).step(torch.randn(4, 3, 6, 6), targets)


def test_cross_entropy_takes_shares_of_classes_and_leaves_out_what_is_marked():
    for targets in (torch.eye(4), torch.tensor([0, -100, 1, 2])):
        session_of(trained_a_little(), objective="cross-entropy").step(torch.randn(4, 3, 6, 6), targets)
    with pytest.raises(ValueError, match=r"targets must be classes 0..3 \(-100: left out\), got 4..4"):
        session_of(trained_a_little(), objective="cross-entropy").step(torch.randn(1, 3, 6, 6), torch.tensor([4]))


def test_a_large_network_is_not_masked_ahead(monkeypatch):
    monkeypatch.setattr("tersify.methods.ahead.MOST_AHEAD", 10)
    session = session_of(trained_a_little())
    session.step(*batch())
    gates = [link for site in session.sites for link in site.chain if isinstance(link, GateTransform)]
    assert gates
    assert not any(gate.ahead._weight is not None for gate in gates)


def test_compression_without_training_is_refused():
    with pytest.raises(ValueError, match="searches while the network trains"):
        tersify.compress_(trained_a_little(), Recipe(rules=[Rule(methods=[Energy()])]))


def test_a_network_that_cannot_be_traced_is_refused():
    class Branches(Residual):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    with pytest.raises(ValueError, match="cannot trace"):
        session_of(Branches())


def test_an_objective_comes_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def energy(logits, targets):\n    return -logits.gather(1, targets[:, None])[:, 0]\n")
    session = session_of(trained_a_little(), objective=f"{path}:energy")
    session.step(*batch())
    assert "mine.py:energy" in session.recipe.to_toml()


def test_the_search_improves_the_energy_of_a_network_that_does_not_train():
    session = session_of(trained_a_little(), stagnation=1.0, epochs=30)
    energies = []
    for _ in range(60):
        session.step(*batch())
        energies.append(session.status()["energy"])
    assert energies == sorted(energies, reverse=True)
    assert energies[-1] < energies[0] - 0.03
