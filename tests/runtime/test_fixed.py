"""The integer simulation is what torch computes in integers; saturation is counted;
nodes can be dumped.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tersify
from tersify import Recipe, Rule
from tersify.lab import network
from tersify.methods import Lookup
from tersify.runtime.fixed import (
    ROUNDINGS,
    Format,
    Monitor,
    fixed_network,
    quantize,
    shift_right,
)


def packed_mlp(sizes=(48, 20, 12), **settings):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    model = torch.nn.Sequential(*layers)
    return tersify.compress_(
        model, Recipe(rules=(Rule(methods=(Lookup(**settings),)),))
    )


def torch_reference(packed, fixed, x):
    """The same integers by another road: from the dense weights, in torch's int64."""
    for name, layer in fixed.layers.items():
        step = layer.table.format.fine_step
        weight = (packed[f"{name}.weight"].to_dense().double() / step).round().long()
        bias_step = 2.0**-layer.bias_format.fraction
        bias = (
            (packed[f"{name}.bias"].double() / bias_step + 0.5)
            .floor()
            .clamp(-128, 127)
            .long()
        )
        sums = x @ weight.T + bias * 2**layer.bias_shift
        if layer.relu:
            sums = sums.clamp(min=0)
        x = torch.div(
            sums + 2 ** (layer.output_shift - 1),
            2**layer.output_shift,
            rounding_mode="floor",
        ).clamp(-128, 127)
    return x


@pytest.mark.parametrize(
    "settings",
    [{}, {"sign_in_code": True}, {"fit": "paper"}, {"n": 3, "m": 6}, {"shift": False}],
)
def test_the_simulation_equals_torchs_integers_on_a_thousand_vectors(settings):
    packed = packed_mlp(**settings)
    fixed = fixed_network(packed)
    x = fixed.random_inputs(1000)
    y = fixed(x)
    assert np.array_equal(
        y, torch_reference(packed, fixed, torch.from_numpy(x)).numpy()
    )
    assert len(np.unique(y)) > 30


def test_widening_the_weight_and_shifting_the_product_give_the_same_integers():
    fixed = fixed_network(packed_mlp())
    x = fixed.random_inputs(200)
    layer = next(iter(fixed.layers.values()))
    assert layer.table.format.k > 0
    assert np.array_equal(
        layer.accumulate(x, "widen-weight"), layer.accumulate(x, "shift-product")
    )


def test_eight_bit_integers_stay_close_to_the_real_network():
    packed = packed_mlp()
    fixed = fixed_network(packed)
    x = np.random.default_rng(1).standard_normal((200, 48))
    y = fixed(quantize(x, fixed.input))
    real = torch.from_numpy(x).float()
    for name, layer in fixed.layers.items():
        real = torch.nn.functional.linear(
            real, packed[f"{name}.weight"].to_dense(), packed[f"{name}.bias"]
        )
        real = real.relu() if layer.relu else real
    last = list(fixed.layers.values())[-1]
    error = np.abs(last.output.real(y) - real.numpy())
    assert error.mean() < 0.02 * real.abs().max()


def test_the_accumulator_is_wide_enough_for_the_worst_input():
    fixed = fixed_network(packed_mlp())
    layer = next(iter(fixed.layers.values()))
    weights = layer.table.fine_words()[0][layer.table.codes]
    worst = np.where(weights > 0, layer.input.highest, layer.input.lowest)
    monitor = Monitor()
    layer(worst, monitor, "layer")
    assert monitor.nodes["layer.accumulator"].overflows == 0


def test_saturation_is_counted_never_silent():
    monitor = Monitor(dump=True)
    kept = monitor.see(
        "node", np.array([-200, 3, 127, 128]), Format(width=8, fraction=0)
    )
    assert kept.tolist() == [-128, 3, 127, 127]
    node = monitor.nodes["node"]
    assert (node.overflows, node.lowest, node.highest, node.values) == (2, -200, 128, 4)
    assert node.dump.tolist() == kept.tolist()
    assert monitor.overflows() == {"node": 2}


def test_every_node_can_be_dumped():
    fixed = fixed_network(packed_mlp())
    monitor = Monitor(dump=True)
    y = fixed(fixed.random_inputs(5), monitor)
    assert list(monitor.nodes) == [
        f"{n}.{part}" for n in ("0", "1") for part in ("input", "accumulator", "output")
    ]
    assert np.array_equal(monitor.nodes["1.output"].dump, y)


@given(
    st.integers(-10_000, 10_000), st.integers(0, 10), st.sampled_from(sorted(ROUNDINGS))
)
def test_every_rounding_is_a_neighbour_and_exact_where_it_can_be(value, bits, rounding):
    got = int(shift_right(np.array([value]), bits, rounding)[0])
    assert abs(got * 2**bits - value) < 2**bits
    if value % 2**bits == 0:
        assert got * 2**bits == value


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("floor", [-2, -1, 0, 1]),
        ("half-up", [-1, 0, 1, 2]),
        ("half-even", [-2, 0, 0, 2]),
        ("toward-zero", [-1, 0, 0, 1]),
    ],
)
def test_roundings_differ_at_halves(rounding, expected):
    assert shift_right(np.array([-3, -1, 1, 3]), 1, rounding).tolist() == expected


def test_bad_input_is_told():
    with pytest.raises(ValueError, match="NaN"):
        quantize(np.array([np.nan]), Format(width=8, fraction=4))
    with pytest.raises(ValueError, match="no compressed matrix"):
        fixed_network({"weight": torch.zeros(3, 3)})
    with pytest.raises(ValueError, match="rounding must be one of"):
        shift_right(np.array([1]), 1, "up")
    with pytest.raises(ValueError, match="plain chain"):
        fixed_network(
            dict(packed_mlp((48, 20))) | {"z.weight": packed_mlp((30, 12))["0.weight"]}
        )
    with pytest.raises(ValueError, match="one table a layer"):
        fixed_network(packed_mlp(n=2, per_channel=True))
    with pytest.raises(
        ValueError, match=r"'0\.weight': .* is no lookup table; compress the weight"
    ):
        fixed_network(
            tersify.compress_(torch.nn.Sequential(torch.nn.Linear(6, 3)), "twn")
        )


def test_a_network_with_more_than_the_chain_has_no_circuit_rather_than_half_of_one():
    convolutional = tersify.compress_(network("digits-cnn", width=0.25), "lut-4")
    with pytest.raises(
        ValueError,
        match=r"'features\.0\.weight' and 27 more would be left out; only a plain chain",
    ):
        fixed_network(convolutional)
