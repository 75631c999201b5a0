"""Lookup tables: the paper's split, the better fits, and what they refuse."""

import copy
import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tersify
from tersify import Recipe, Rule
from tersify.methods import Lookup, Prune
from tersify.methods.lookup.fit import fit_table
from tersify.methods.lookup.lookup import MOST_COMPARED, codes_by_edges
from tersify.methods.lookup.range_split import (
    interval_counts,
    interval_means,
    range_split,
    squared_error,
)
from tersify.tensor import Table, TableFormat


def weights(seed: int = 0, size: int = 4000, scale: float = 0.1) -> np.ndarray:
    return np.random.default_rng(seed).laplace(scale=scale, size=size).clip(-0.99, 0.99)


def layer(seed: int = 0, shape: tuple[int, int] = (16, 64)) -> torch.nn.Linear:
    torch.manual_seed(seed)
    linear = torch.nn.Linear(shape[1], shape[0])
    with torch.no_grad():
        linear.weight.copy_(
            torch.from_numpy(weights(seed, linear.weight.numel()).reshape(shape))
        )
    return linear


def compressed(*methods, module=None, **options):
    module = module or layer()
    return tersify.compress_(
        module, Recipe(rules=(Rule(weights="weight", methods=methods),)), **options
    )["weight"]


@pytest.mark.parametrize(
    ("n", "ratio", "counts"),
    [
        (4, 1.0, (4, 8, 4)),
        (4, 2.0, (3, 10, 3)),
        (3, 1.0, (2, 4, 2)),
        (2, 1.0, (1, 2, 1)),
    ],
)
def test_external_intervals_are_even_and_half_lie_in_each_tail(n, ratio, counts):
    assert interval_counts(n, ratio, 0.04, 0.96) == counts


def test_unequal_tails_get_intervals_by_their_mass():
    assert interval_counts(4, 1.0, 0.03, 0.99) == (6, 8, 2)


@pytest.mark.parametrize(("n", "ratio"), [(1, 1.0), (4, 0.05), (4, 15.9)])
def test_a_split_that_leaves_a_part_without_intervals_is_refused(n, ratio):
    with pytest.raises(ValueError, match="each part needs one"):
        Lookup(n=n, fit="paper", ratio=ratio)


def test_range_split_is_uniform_inside_and_equally_likely_outside():
    data = weights()
    edges, low, high = range_split(data, 4, 1.0, 0.04, 0.96)
    fractions = np.histogram(data, np.concatenate([[-1], edges, [1]]))[0] / len(data)
    assert fractions[[0, 1, 2, 3, 12, 13, 14, 15]] == pytest.approx(0.01, abs=1e-3)
    assert np.diff(edges[3:12]) == pytest.approx((high - low) / 8)


def test_an_empty_interval_gets_its_midpoint():
    assert interval_means(np.array([-1.0, 1.0]), np.array([-0.5, 0.5])).tolist() == [
        -1.0,
        0.0,
        1.0,
    ]


def test_the_papers_fit_takes_interval_means_and_k_from_the_edges():
    data = weights()
    fitted = fit_table(data[None], Lookup(fit="paper", integer_bits=0))
    edges, low, high = range_split(data, 4, 1.0, 0.04, 0.96)
    reach = max(-low, high)
    assert 2.0 ** -(fitted.format.k + 1) <= reach < 2.0**-fitted.format.k
    error = np.abs(fitted.levels[0] - interval_means(data, edges))
    assert error[4:12].max() <= fitted.format.fine_step / 2
    assert error.max() <= fitted.format.step / 2


def test_the_shift_is_what_the_paper_says_it_is_for():
    data = weights(scale=0.004)
    without, with_shift = (
        fit_table(data[None], Lookup(fit="paper", integer_bits=0, shift=s))
        for s in (False, True)
    )
    assert len(np.unique(without.levels)) < 16
    assert len(np.unique(with_shift.levels)) == 16


def test_each_fit_beats_the_one_before_it():
    data = weights()
    errors = [
        squared_error(data, fit_table(data[None], Lookup(fit=f)).levels[0])
        for f in ("nearest", "lloyd", "optimal")
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.8 * errors[0]


@given(
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
    st.sampled_from([0.0, 0.7, -0.7]),
)
def test_optimal_is_the_best_of_all_tables(seed, force_zero, k, sign_in_code, centre):
    data = (weights(seed, size=12, scale=0.4 if centre == 0 else 0.05) + centre).clip(
        -0.99, 0.99
    )
    method = Lookup(
        n=2, m=3, k=k, integer_bits=0, force_zero=force_zero, sign_in_code=sign_in_code
    )
    form = TableFormat(n=2, m=3, k=k, sign_in_code=sign_in_code)
    fitted = fit_table(data[None], method)

    def allowed(levels):
        signs = not sign_in_code or (levels[1] <= 0 <= levels[2])
        return signs and (not force_zero or 0 in levels)

    tables = [
        t for t in itertools.combinations_with_replacement(form.grid(), 4) if allowed(t)
    ]
    best = min(squared_error(data, np.array(t)) for t in tables)
    assert squared_error(data, fitted.levels[0]) <= best + 1e-12


@given(st.integers(0, 1000))
def test_optimal_with_a_free_shift_is_no_worse_than_any_given_one(seed):
    data = weights(seed, size=200)
    free = squared_error(data, fit_table(data[None], Lookup(n=3, m=5)).levels[0])
    for k in range(4):
        assert (
            free
            <= squared_error(
                data, fit_table(data[None], Lookup(n=3, m=5, k=k)).levels[0]
            )
            + 1e-12
        )


def test_a_given_ratio_fixes_how_many_levels_are_internal():
    fitted = fit_table(weights()[None], Lookup(ratio=1.0, k=2, integer_bits=0))
    internal = fitted.format.is_internal(fitted.levels[0])
    assert internal[4:12].all()
    assert not internal[[0, 15]].any()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sign_in_code": True},
        {"fit": "paper"},
        {"fit": "lloyd", "per_channel": True},
        {"per_channel": True},
        {"placement": "uniform", "fit": "nearest"},
        {"n": 8, "placement": "uniform", "fit": "paper", "shift": False},
        {"n": 3, "m": 6, "force_zero": True},
        {"fit": "nearest", "sign_in_code": True},
    ],
)
def test_every_packed_table_holds_exact_words(settings):
    tensor = compressed(Lookup(**settings))
    table = Table.of(tensor)
    rows = (
        np.arange(len(table.words))
        if len(table.words) > 1
        else np.zeros(tensor.shape[0], int)
    )
    words = table.fine_words()[rows[:, None], table.codes]
    assert np.array_equal(
        words * table.format.fine_step, tensor.to_dense().double().numpy()
    )
    if table.format.sign_in_code:
        half = table.format.levels // 2
        assert (table.words[:, :half] <= 0).all()
        assert (table.words[:, half:] >= 0).all()


def test_uniform_placement_is_plain_fixed_point():
    module = layer()
    before = module.weight.detach().clone()
    tensor = compressed(
        Lookup(
            n=4, m=4, placement="uniform", fit="nearest", shift=False, integer_bits=0
        ),
        module=module,
    )
    expected = (before * 8).add(0.5).floor().clamp(-8, 7) / 8
    assert torch.equal(tensor.to_dense(), expected)
    assert Table.of(tensor).table_bytes() == 0


def test_a_uniform_placement_with_shift_uses_the_whole_range():
    tensor = compressed(
        Lookup(placement="uniform", fit="nearest", integer_bits=0), module=small_layer()
    )
    assert tensor.format["k"] == 4
    assert len(tensor.codes.unique()) > 10


def small_layer() -> torch.nn.Linear:
    module = layer()
    with torch.no_grad():
        module.weight.mul_(0.06 / module.weight.abs().max())
    return module


def test_pruned_weights_stay_zero_through_the_chain():
    tensor = compressed(Prune(sparsity=0.75), Lookup(force_zero=True))
    assert int((tensor.to_dense() == 0).sum()) >= 0.75 * tensor.numel()
    # The table was fitted to what survived, not to what the pruner took away.
    assert (tensor.codebook.abs().sort().values[1:] > 0.02).all()


def test_a_table_without_zero_is_refused_behind_a_pruner():
    with pytest.raises(ValueError, match="has no zero level"):
        Rule(methods=(Prune(), Lookup()))


def test_weights_beyond_the_format_are_counted_and_told():
    module = layer()
    with torch.no_grad():
        module.weight[0, :5] = 3.0
    with pytest.warns(UserWarning, match="5 of 1024 weights lie beyond"):
        tensor = compressed(Lookup(integer_bits=0), module=module)
    assert tensor.format["saturated"] == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.weight.data[0, :5] = 3.0
        assert compressed(Lookup(), module=module).format["integer_bits"] == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 4, "m": 3}, "m must be 4..10, got 3"),
        ({"n": 0}, "n must be 1..8"),
        ({"p_start": 0.9, "p_stop": 0.1}, "0 < p_start < p_stop < 1"),
        ({"k": 3, "shift": False}, "k = 3 is a shift"),
        ({"k": 99}, "k must be 0..8"),
        ({"fit": "best"}, "fit must be one of"),
        ({"ratio": -1.0}, "ratio must lie"),
        ({"placement": "uniform"}, "leaves nothing to fit"),
        ({"integer_bits": 40}, "integer_bits must be"),
    ],
)
def test_impossible_settings_are_told(settings, words):
    with pytest.raises(ValueError, match=words):
        Lookup(**settings)


def test_a_tensor_smaller_than_the_table_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"'weight' has 8 weights for a table of 16; take fewer bits"
    ):
        compressed(Lookup(), module=torch.nn.Linear(4, 2))


def test_nan_is_refused_by_name():
    module = layer()
    module.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="'weight' holds NaN"):
        compressed(Lookup(), module=module)


def test_sensitivity_needs_calibration_and_says_so():
    with pytest.raises(ValueError, match="give calibration= batches"):
        compressed(Lookup(fit="sensitivity"))


def test_sensitive_weights_are_kept_more_exactly():
    module, batches = layer(), []
    module.weight.data[:, :8] *= 0.3
    torch.manual_seed(1)
    for _ in range(8):
        x = torch.randn(8, 64)
        x[:, 8:] *= 0.02  # the first columns carry nearly all of the signal
        batches.append((x, torch.randint(0, 16, (8,))))
    before = module.weight.detach().clone()
    plain = compressed(Lookup(n=3), module=copy.deepcopy(module))
    careful = compressed(
        Lookup(n=3, fit="sensitivity"), module=module, calibration=batches
    )

    def error(tensor):
        return float((tensor.to_dense() - before)[:, :8].square().sum())

    assert error(careful) < 0.8 * error(plain)


def test_training_moves_the_table_and_it_stays_on_the_words():
    module = layer()
    session = tersify.attach(
        module,
        Recipe(rules=(Rule(methods=(Lookup(n=2),)),)),
        epochs=1,
        steps_per_epoch=60,
    )
    start = session.pack()["weight"]
    optimizer = torch.optim.Adam(session.param_groups(), lr=3e-3)
    x = torch.randn(128, 64)
    target = torch.nn.functional.linear(x, 1.5 * layer().weight).detach()
    losses = []
    for _ in range(60):
        session.step()
        loss = (module(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    end = session.pack()["weight"]
    assert losses[-1] < 0.7 * losses[0]
    assert not torch.equal(start.codebook.sort().values, end.codebook.sort().values)
    Table.of(end)  # refuses levels that are not words


def test_a_table_that_is_not_learned_stays():
    module = layer()
    recipe = Recipe(rules=(Rule(methods=(Lookup(learn=False),)),))
    session = tersify.attach(module, recipe, epochs=1, steps_per_epoch=3)
    start = session.pack()["weight"]
    optimizer = torch.optim.SGD(session.param_groups(), lr=0.5)
    for _ in range(3):
        session.step()
        module(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    end = session.pack()["weight"]
    assert torch.equal(start.codebook, end.codebook)
    assert not torch.equal(start.codes, end.codes)


@pytest.mark.parametrize(
    ("integer_bits", "k", "step"),
    [(0, 0, 1 / 4), (0, 2, 1 / 16), (-1, 1, 1 / 16), (1, 0, 1 / 2)],
)
def test_a_uniform_placement_is_fixed_point_with_steps_of_the_shifted_format(
    integer_bits, k, step
):
    method = Lookup(
        n=3, m=8, placement="uniform", fit="nearest", k=k, integer_bits=integer_bits
    )
    fitted = fit_table(weights(size=100, scale=0.02)[None], method)
    assert fitted.levels[0].tolist() == [step * number for number in range(-4, 4)]


@pytest.mark.parametrize("fit", ["paper", "nearest", "lloyd"])
def test_weights_beyond_the_format_count_as_its_ends(fit):
    method = Lookup(n=3, m=8, fit=fit, integer_bits=0, k=0)
    rows = np.concatenate([weights(size=500, scale=0.3), [-5.0, -3.0, 4.0]])[None]
    beyond, inside = (
        fit_table(rows, method),
        fit_table(rows.clip(-1.0, 127 / 128), method),
    )
    assert (beyond.saturated, inside.saturated) == (3, 0)
    assert np.array_equal(beyond.levels, inside.levels)


@pytest.mark.parametrize("tables", [1, 7])
@pytest.mark.parametrize("edges", [1, 3, 15, 255])
def test_counted_edges_give_the_codes_of_a_binary_search(tables, edges):
    torch.manual_seed(edges)
    rows = torch.randn(tables, edges).sort(1).values
    values = torch.cat([torch.randn(tables, 40), rows], 1)
    values[:, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    assert values.numel() * edges < MOST_COMPARED
    expected = torch.searchsorted(rows, values, right=True)
    assert torch.equal(codes_by_edges(rows, values), expected)
