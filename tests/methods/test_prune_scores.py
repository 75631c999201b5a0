"""Each score's own claim: what it calls worth keeping."""

import contextlib

import pytest
import torch
from pruning import begin, pruned_at_once, train, zero_fraction
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.calibration import Calibration, input_norms
from tersify.methods import Prune
from tersify.plain_names import without_plain_names
from tersify.sites import find_sites


def linear_with(row):
    model = nn.Linear(len(row), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([row]))
    return model


def test_movement_keeps_what_grows_and_drops_what_shrinks_whatever_its_size():
    model = linear_with([1.0, 1.0, 0.1, 0.1])
    # the large ones shrink, the small ones grow
    goal = torch.tensor([0.2, 0.2, 0.5, 0.5])
    session = begin(
        model, epochs=20, score="movement", sparsity=0.5, begin=0.5, end=0.8
    )
    train(model, session, lambda m: (m.weight - goal).square().sum(), 20, lr=0.02)
    assert (model.weight != 0).tolist() == [[False, False, True, True]]


def test_a_weight_that_movement_pruned_returns_when_its_gradient_asks():
    model = linear_with([1.0, 0.9])
    session = begin(
        model, epochs=60, score="movement", sparsity=0.5, begin=0.02, end=1.0
    )
    train(
        model,
        session,
        lambda m: (m.weight - torch.tensor([2.0, 0.0])).square().sum(),
        30,
    )
    assert (model.weight != 0).tolist() == [[True, False]]
    # The masked weight is zero and should be larger: its score rises though the weight
    # itself gets no gradient.
    train(
        model,
        session,
        lambda m: (m.weight - torch.tensor([0.0, 9.0])).square().sum(),
        30,
    )
    assert (model.weight != 0).tolist() == [[False, True]]


def test_soft_movement_makes_more_zeros_with_a_larger_lam_and_keeps_what_the_loss_holds():
    fractions = []
    for lam in (0.1, 1.0, 10.0):
        torch.manual_seed(0)
        model = nn.Linear(16, 16, bias=False)
        goal = torch.randn(16, 16)
        session = begin(
            model, epochs=60, score="soft-movement", lam=lam, gain=30.0, end=0.9
        )
        train(
            model,
            session,
            lambda m, goal=goal: (m.weight - goal).square().mean(),
            60,
            lr=1.0,
        )
        fractions.append(zero_fraction(model.weight))
    assert fractions[0] + 0.1 < fractions[1] < fractions[2] - 0.1
    kept = model.weight != 0
    assert goal[kept].abs().mean() > 2 * goal[~kept].abs().mean()


def test_taylor_keeps_the_small_weight_the_loss_depends_on():
    model = linear_with([0.1, 1.0, 0.1, 1.0])
    factors = torch.tensor([100.0, 0.01, 100.0, 0.01])
    session = begin(model, epochs=10, score="taylor", sparsity=0.5, end=0.5)
    train(model, session, lambda m: (m.weight * factors).sum(), 10, lr=1e-4)
    assert (model.weight != 0).tolist() == [[True, False, True, False]]


def test_snip_prunes_once_before_training_by_calibration_gradients():
    model = linear_with([0.1, 1.0, 0.1, 1.0])
    x = torch.tensor([[100.0, 0.01, 100.0, 0.01]])
    batches = Calibration([(x, torch.zeros(1, 1))], loss=lambda out, target: out.sum())
    session = begin(
        model,
        epochs=5,
        calibration=batches,
        score="taylor",
        sparsity=0.5,
        schedule="one-shot",
    )
    session.step()
    assert (model.weight != 0).tolist() == [[True, False, True, False]]


def test_optimal_brain_damage_keeps_what_half_the_curvature_times_the_square_says():
    model = linear_with([2.0, 1.0, 0.5, 0.1])
    # squared gradients 0.01, 1, 1, 900: worth 0.02, 0.5, 0.125, 4.5
    x = torch.tensor([[0.1, 1.0, 1.0, 30.0]])
    batches = Calibration([(x, torch.zeros(1, 1))], loss=lambda out, target: out.sum())
    kept = (
        pruned_at_once(model, score="obd", sparsity=0.5, calibration=batches).weight
        != 0
    )
    assert kept.tolist() == [[False, True, False, True]]


def test_optimal_brain_damage_without_data_is_an_error():
    with pytest.raises(ValueError, match="'prune' as it is set needs data"):
        pruned_at_once(nn.Linear(4, 4), score="obd")


def test_wanda_keeps_a_small_weight_that_meets_a_large_input():
    torch.manual_seed(0)
    x = torch.randn(64, 8) * torch.tensor([1.0, 1, 1, 1, 50, 50, 50, 50])
    model = nn.Linear(8, 4, bias=False)
    nn.init.uniform_(model.weight, 0.5, 1.5)
    kept = (
        pruned_at_once(
            model, score="wanda", sparsity=0.5, scope="row", calibration=[(x, None)]
        ).weight
        != 0
    )
    assert kept.tolist() == [[False] * 4 + [True] * 4] * 4


def test_wanda_leaves_less_output_error_than_magnitude():
    torch.manual_seed(0)
    x = torch.randn(256, 64) * torch.logspace(-1, 1, 64)[torch.randperm(64)]
    dense = nn.Linear(64, 32, bias=False)
    errors = {}
    for score in ("wanda", "magnitude"):
        model = nn.Linear(64, 32, bias=False)
        model.load_state_dict(dense.state_dict())
        batches = [(x[:128], None)]
        pruned_at_once(
            model, score=score, sparsity=0.5, scope="row", calibration=batches
        )
        errors[score] = (model(x[128:]) - dense(x[128:])).norm().item()
    assert errors["wanda"] < 0.6 * errors["magnitude"]


def test_input_norms_follow_the_groups_of_a_convolution():
    model = nn.Conv2d(4, 6, 3, groups=2, bias=False)
    x = torch.randn(2, 4, 5, 5)
    (norm,) = input_norms(model, find_sites(model), Calibration([(x, None)]))
    per_channel = x.square().sum((0, 2, 3)).sqrt()
    assert norm.shape == (6, 2, 1, 1)
    assert torch.allclose(norm[:3, :, 0, 0], per_channel[:2].expand(3, 2))
    assert torch.allclose(norm[3:, :, 0, 0], per_channel[2:].expand(3, 2))


@pytest.mark.parametrize("mode", ["frozen", "unused"])
def test_a_weight_that_training_does_not_reach_is_measured_all_the_same(mode):
    model = nn.ModuleDict(
        {"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)}
    )
    model.forward = lambda x: (
        model["b"](model["a"](x)) if mode == "frozen" else model["b"](x)
    )
    model["a"].weight.requires_grad_(mode == "unused")
    told = pytest.warns(
        UserWarning, match=r"rule 'a\.weight' names 'a\.weight' \(frozen\)"
    )
    with told if mode == "frozen" else contextlib.nullcontext():
        pruned_at_once(
            model,
            weights=["a.weight", "b.weight"],
            sparsity=0.5,
            score="taylor",
            schedule="one-shot",
            calibration=batches_of_four(),
        )
    assert [zero_fraction(weight) for weight in model.parameters()] == [0.5, 0.5]
    assert model["a"].weight.requires_grad is (mode == "unused")
    assert model["b"].weight.requires_grad
    assert model["a"].weight.grad is None


def test_batches_that_come_only_once_serve_every_rule():
    def pruned(calibration):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        settings = {"sparsity": 0.5, "score": "taylor", "schedule": "one-shot"}
        rules = [
            Rule(weights=name, methods=[Prune(**settings)]) for name in ("0.*", "1.*")
        ]
        tersify.compress_(model, Recipe(rules=rules), calibration=calibration)
        return model.state_dict()

    wanted = pruned(batches_of_four())
    for once in (iter(batches_of_four()), Calibration(iter(batches_of_four()))):
        got = pruned(once)
        assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def batches_of_four():
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(6, 4, generator=generator), torch.arange(6) % 4) for _ in range(3)
    ]


def test_random_is_the_same_for_the_same_seed_and_other_for_another():
    masks = []
    for seed in (1, 1, 2):
        model = nn.Linear(30, 30)
        masks.append(
            pruned_at_once(model, score="random", sparsity=0.5, seed=seed).weight != 0
        )
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    assert zero_fraction(masks[2]) == 0.5


@pytest.mark.parametrize("score", ["movement", "taylor"])
def test_a_score_from_training_says_so_when_there_was_none(score):
    with pytest.raises(ValueError, match="comes from training"):
        pruned_at_once(nn.Linear(4, 4), score=score, sparsity=0.5)


def test_wanda_without_data_or_where_inputs_are_hidden_is_an_error():
    with pytest.raises(ValueError, match="needs data; give calibration="):
        pruned_at_once(nn.Linear(4, 4), score="wanda")
    with pytest.raises(ValueError, match="belongs to a LSTM"):
        pruned_at_once(
            nn.LSTM(4, 4), score="wanda", calibration=[(torch.randn(1, 2, 4), None)]
        )


def test_magnitude_remembers_one_byte_a_weight():
    model = nn.Linear(100, 100, bias=False)
    before = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    begin(model, sparsity=0.9)
    kept = without_plain_names(model, model.state_dict())
    after = sum(t.numel() * t.element_size() for t in kept.values())
    assert after - before <= 1.2 * 100 * 100


def test_with_a_head_start_movement_begins_at_the_weights_magnitudes():
    model = nn.Linear(16, 4, bias=False)
    session = begin(
        model,
        epochs=1,
        score="movement",
        head_start=1.0,
        sparsity=0.5,
        begin=0.0,
        end=0.1,
    )
    weight = session.sites[0].latent.detach().abs()
    session.advance_to_end()
    kept = session.pack()["weight"].codes.bool()
    assert weight[kept].min() >= weight[~kept].max()


@pytest.mark.parametrize("setting", ["head_start", "lines"])
def test_what_belongs_to_movement_is_refused_where_nothing_moves(setting):
    with pytest.raises(
        ValueError,
        match=f"{setting} belongs to score 'movement', got 1.0 with 'magnitude'; leave",
    ):
        Prune(score="magnitude", **{setting: 1.0})


@pytest.mark.parametrize(
    ("lines", "kept"), [(0.0, "the larger"), (10.0, "the row that grows")]
)
def test_with_lines_a_weight_shares_in_the_movement_of_its_row(lines, kept):
    model = nn.Linear(8, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0] * 8, [0.5] * 8]))
    session = begin(
        model,
        epochs=40,
        score="movement",
        sparsity=0.5,
        gain=1.0,
        head_start=1.0,
        lines=lines,
    )
    train(
        model,
        session,
        lambda m: (m.weight[0].sum() - m.weight[1].sum()) * 0.1,
        40,
        lr=0.01,
    )
    wanted = {"the larger": [8, 0], "the row that grows": [0, 8]}
    assert (model.weight != 0).sum(1).tolist() == wanted[kept]


def test_the_scores_of_lines_cost_one_number_a_row_and_a_column():
    model = nn.Conv2d(3, 5, 2)
    begin(model, score="movement", sparsity=0.5, lines=1.0)
    shapes = [
        tuple(p.shape) for name, p in model.named_parameters() if "line_scores" in name
    ]
    assert shapes == [(5, 1, 1, 1), (1, 3, 1, 1)]


def test_taylor_counts_a_loss_and_a_gain_alike():
    """Moving the second weight to zero would change the loss more, and downwards."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    session = begin(model, epochs=20, score="taylor", sparsity=0.5, schedule="linear")
    for _ in range(20):
        session.step()
        (model.weight * torch.tensor([[3.0, -5.0]])).sum().backward()
    gathered = (1 - 0.9**20) * torch.tensor([[3.0, 5.0]])
    assert torch.allclose(session.sites[0].chain[0].score, gathered)
    assert session.pack()["weight"].to_dense().tolist() == [[0.0, 1.0]]
