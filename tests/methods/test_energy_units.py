"""Energy-based pruning: which units there are, how many stay, and what goes with them."""

import pytest
import torch
import torch.nn.functional as F
from searching import batch, evaluator_of, session_of, trained_a_little, work_of
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Energy
from tersify.methods.energy import full_network


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
    session = session_of(
        trained_a_little(), keep=0.5, count="units", bound="exactly", init=0.1
    )
    for _ in range(5):
        session.step(*batch())
        assert (work_of(session).population.states.sum(1) == 18).all()


def test_a_heavier_size_weight_keeps_fewer_parameters():
    kept = []
    for weight in (0.0, 100.0):
        session = session_of(
            trained_a_little(),
            size_weight=weight,
            stagnation=1.0,
            search="genetic",
            flip=0.05,
        )
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
        tersify.attach(
            trained_a_little(),
            Recipe(rules=[Rule(weights="head.weight", methods=[Energy()])]),
            steps=9,
        )


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
        model, inputs, targets = (
            Attends().double(),
            torch.randn(6, 5, 6, dtype=torch.float64),
            torch.arange(6) % 4,
        )
    session = session_of(model, coupled=True, example=inputs[:2])
    evaluator = evaluator_of(session, model, inputs, targets)
    units = work_of(session).population.states.shape[1]
    states = torch.rand(8, units, generator=torch.Generator().manual_seed(1)) < 0.5
    folded = evaluator.energies(states, inputs, targets)
    assert torch.allclose(
        folded, evaluator.one_by_one(states, inputs, targets), rtol=1e-10, atol=1e-12
    )
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


def test_a_layer_that_would_lose_all_units_keeps_one_and_the_status_says_so():
    model = nn.Sequential(
        nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3)
    )
    session = session_of(model, init=0.05)
    session.step(torch.randn(5, 6), torch.arange(5) % 3)
    assert session.status()["revived"] > 0
    assert all(layer.gate.mask.any() for layer in work_of(session).layers)
