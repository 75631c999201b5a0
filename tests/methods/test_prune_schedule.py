"""When masks are chosen, and how much goes by then."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pruning import begin, zero_fraction
from torch import nn

from tersify.methods import Prune, from_table
from tersify.methods.pruning.choice import choose_globally, least_kept, lowest
from tersify.schedules import Progress, cubic_ramp


def fractions(epochs, **settings):
    model = nn.Linear(50, 20, bias=False)
    session = begin(model, epochs=epochs, **settings)
    seen = []
    for _ in range(epochs):
        session.step()
        seen.append(zero_fraction(model.weight))
    return seen


def test_agp_follows_the_cubic_of_zhu_and_gupta():
    seen = fractions(40, sparsity=0.9, start=0.3, begin=0.1, end=0.6)
    cubic = cubic_ramp(0.3, 0.9, 0.1, 0.6)
    for step in range(4, 24):
        assert seen[step] == pytest.approx(cubic(Progress(step, 40, 1.0)), abs=1e-3)
    assert seen[:4] == [0.0] * 4
    assert seen[24:] == pytest.approx([0.9] * 16)


def test_linear_rises_by_equal_steps():
    seen = fractions(20, sparsity=0.5, schedule="linear", end=0.5)
    assert seen[:11] == pytest.approx([0.05 * i for i in range(11)], abs=1e-3)


def test_a_frequency_chooses_seldom_and_still_ends_on_time():
    seen = fractions(20, sparsity=0.9, every=4, end=0.5)
    changes = [i for i in range(1, 20) if seen[i] != seen[i - 1]]
    assert changes == [4, 8, 10]
    assert seen[10:] == pytest.approx([0.9] * 10)


def test_one_shot_prunes_once_and_the_mask_stays_through_fine_tuning():
    model = nn.Linear(20, 20, bias=False)
    session = begin(model, epochs=10, sparsity=0.8, schedule="one-shot", begin=0.3)
    seen = []
    for _ in range(10):
        session.step()
        seen.append(model.weight != 0)
        with torch.no_grad():
            session.sites[0].latent.copy_(torch.randn(20, 20))
    assert [bool(mask.all()) for mask in seen[:4]] == [True] * 3 + [False]
    assert all(torch.equal(mask, seen[3]) for mask in seen[3:])


def test_cyclic_lets_weights_regrow_between_its_ramps():
    seen = fractions(60, sparsity=0.8, schedule="cyclic", cycles=3, regrow=0.5, end=0.9)
    falls = [i for i in range(1, 60) if seen[i] < seen[i - 1]]
    assert len(falls) == 2
    assert all(seen[i] == pytest.approx(0.4, abs=0.03) for i in falls)
    assert seen[54:] == pytest.approx([0.8] * 6)


def test_a_weight_regrown_in_a_cycle_trains_again():
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    session = begin(
        model, epochs=20, sparsity=0.5, schedule="cyclic", cycles=2, regrow=1.0, end=0.9
    )
    optimizer = torch.optim.SGD(session.param_groups(), lr=0.5)
    for _ in range(20):
        session.step()
        optimizer.zero_grad()
        # Wants the two that the first cycle prunes; they move in the second cycle's
        # beginning.
        (-(model.weight * torch.tensor([9.0, 9.0, 0.0, 0.0])).sum()).backward()
        optimizer.step()
    assert (model.weight != 0).tolist() == [[True, True, False, False]]


def test_frozen_keeps_the_zeros_it_finds():
    model = nn.Linear(10, 10, bias=False)
    with torch.no_grad():
        model.weight[:, :5] = 0
    session = begin(model, epochs=3, schedule="frozen")
    with torch.no_grad():
        session.sites[0].latent.add_(1.0)
    for _ in range(3):
        session.step()
    assert (model.weight[:, :5] == 0).all()
    assert (model.weight[:, 5:] != 0).all()


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(0, 30))
def test_lowest_takes_exactly_as_many_as_asked_and_the_first_of_equal_ones(
    values, count
):
    count = min(count, len(values))
    chosen = lowest(torch.tensor([values], dtype=torch.float32), count)[0].tolist()
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    assert {i for i, c in enumerate(chosen) if c} == set(order[:count])


def test_layers_compete_globally_and_keep_their_floor():
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    with torch.no_grad():
        model[0].weight.mul_(0.01)
    session = begin(model, scope="global", sparsity=0.5, floor=0.1)
    session.advance_to_end()
    assert zero_fraction(model[0].weight) == pytest.approx(0.9)
    assert zero_fraction(model[1].weight) == pytest.approx(0.1)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.floats(0, 0.5),
    st.floats(0, 0.45),
    st.integers(0, 99),
)
def test_a_global_choice_meets_its_amount_and_every_floor(sizes, floor, fraction, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = [
        torch.randint(0, 5, (1, size), generator=generator).float() for size in sizes
    ]
    room = sum(size - max(1, -int(-floor * size // 1)) for size in sizes)
    wanted = min(round(fraction * sum(sizes)), room)
    kept = choose_globally(scores, lambda units: wanted, floor)
    assert sum(int((~k).sum()) for k in kept) == wanted
    assert all(
        int(k.sum()) >= max(1, floor * size - 1e-6)
        for k, size in zip(kept, sizes, strict=True)
    )


def test_a_row_scope_prunes_every_output_alike():
    model = nn.Linear(20, 5, bias=False)
    session = begin(model, scope="row", sparsity=0.75)
    session.advance_to_end()
    assert (model.weight == 0).sum(1).tolist() == [15] * 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": 0.0}, r"density must be in \(0, 1\], got 0.0"),
        ({"density": 1.5}, r"density must be in \(0, 1\], got 1.5"),
        ({"sparsity": 1.0}, r"sparsity must be in \[0, 1\)"),
        (
            {"sparsity": 0.5, "count": 3},
            "one of sparsity, density and count, got sparsity and count",
        ),
        ({"count": -1}, "count must be a whole number of at least 0, got -1"),
        ({"count": 1.5}, "count must be a whole number of at least 0, got 1.5"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
        ({"begin": 0.6, "end": 0.4}, "end must lie behind begin"),
        ({"every": 0}, "every must be a whole number of at least 1"),
        (
            {"structure": "5:4"},
            "keeps 5 of every 4 weights; N must be 1..M: write 4:5?",
        ),
        ({"structure": "0:4"}, "N must be 1..M"),
        (
            {"structure": "2:4", "sparsity": 0.5},
            "leaves no amount to choose; leave sparsity out",
        ),
        ({"structure": "2:4", "scope": "global"}, "leave scope out"),
        ({"structure": "block-0x4"}, "at least 1x1"),
        ({"structure": "filters"}, "structure must be one of element, kernel, filter"),
        ({"structure": "filter", "scope": "row"}, "spans whole rows"),
        ({"score": "l2"}, "score must be one of magnitude"),
        ({"score": "soft-movement", "sparsity": 0.5}, "leaves no amount to choose"),
        ({"schedule": "cubic"}, "schedule must be one of agp"),
        ({"scope": "global", "sparsity": 0.9, "floor": 0.2}, "less than the floor"),
        ({"floor": 0.2}, "set scope = 'global'"),
        ({"gain": math.nan}, r"gain must be in \(0, 1e\+06\], got nan"),
        ({"lam": "1"}, r"lam must be in \(0, 1e\+06\], got '1'"),
        ({"score": "movement", "head_start": math.nan}, "head_start must be in"),
        ({"score": "movement", "lines": -1.0}, "lines must be in"),
        ({"start": 0.95}, "start must be a fraction between 0 and the final sparsity"),
    ],
)
def test_a_wrong_setting_is_refused_at_birth(settings, message):
    with pytest.raises(ValueError, match=message):
        Prune(**settings)


def test_a_method_and_its_table_are_one():
    table = {"method": "prune", "score": "movement", "structure": "2:4", "every": 10}
    assert from_table(table).to_table() == table


def test_steps_after_the_planned_end_leave_the_mask_alone():
    model = nn.Linear(10, 10, bias=False)
    session = begin(model, epochs=4, sparsity=0.5, end=0.5)
    for _ in range(4):
        session.step()
    mask = session.sites[0].chain[0].mask.clone()
    with torch.no_grad():
        session.sites[0].latent.copy_(torch.randn(10, 10))
    with pytest.warns(UserWarning, match="past the 4 steps that attach was told"):
        session.step()
    assert torch.equal(session.sites[0].chain[0].mask, mask)


@pytest.mark.parametrize(
    ("units", "floor", "kept"), [(10, 0.25, 3), (10, 0.3, 3), (10, 0.0, 1), (7, 0.5, 4)]
)
def test_a_floor_is_rounded_up(units, floor, kept):
    assert least_kept(units, floor) == kept
    (chosen,) = choose_globally(
        [torch.arange(1.0, units + 1)], lambda count: count - kept, floor
    )
    assert int(chosen.sum()) == kept
