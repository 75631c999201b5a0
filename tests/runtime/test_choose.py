"""The cheapest kernel by measured costs, in fp32 and auto, and the file that keeps the
costs.
"""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from tersify.runtime import compile
from tersify.runtime import costs as costs_module
from tersify.runtime.costs import Costs, cache_file, costs_of_this_cpu, keys

extension = pytest.importorskip("tersify._runtime")


def one_nanosecond(**changed):
    """Every kernel costs a nanosecond a weight, but for those that are named by their
    keys.
    """
    return dict.fromkeys(keys(), 1.0) | changed


def network(density=0.5):
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    ).eval()
    for parameter in (layers[0].weight, layers[3].weight):
        parameter.data = parameter.data.sign() * (torch.rand_like(parameter) < density)
    return layers


def close(fast, model, x, tolerance=1e-5):
    with torch.no_grad():
        wanted = model(x)
    return (fast(x) - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_lists_are_chosen_where_they_cost_least(costs, precision):
    costs(conv_dense=9.0, rows_dense=9.0)
    model, x = network(), torch.randn(8, 3, 6, 6)
    fast = compile(model, x, precision=precision, threads=1)
    assert "sign chosen: sign" in fast.plan.describe()
    assert "0 torch calls" in fast.plan.describe()
    assert close(fast, model, x)


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_a_layer_that_is_faster_dense_becomes_a_torch_call_and_the_plan_says_so(
    costs, precision
):
    lanes = {f"{call}_dense-lanes": 50.0 for call in ("conv", "rows", "vector")}
    costs(conv_sign=50.0, rows_sign=50.0, vector_sign=50.0, **lanes)
    model, x = network(), torch.randn(8, 3, 6, 6)
    fast = compile(model, x, precision=precision, threads=1)
    assert fast.plan.describe().count("dense chosen: sign") == 2
    assert "0 operations with kernels" in fast.plan.describe()
    assert close(fast, model, x)
    assert close(fast, model, torch.randn(3, 3, 6, 6))


def test_a_convolution_that_is_cheapest_dense_in_the_engine_stays_there(costs):
    costs(conv_sign=50.0, conv_dense=50.0, rows_dense=9.0)
    model, x = network(), torch.randn(8, 3, 6, 6)
    fast = compile(model, x, threads=1)
    assert "dense-lanes chosen: sign" in fast.plan.describe()
    assert "0 torch calls" in fast.plan.describe()
    assert close(fast, model, x)


def test_8_bit_activations_need_calibration_batches_to_be_chosen(costs):
    costs(conv_int8=0.1, conv_dense=9.0)
    model, x = network(), torch.rand(8, 3, 6, 6)
    assert "int8" not in compile(model, x, precision="auto", threads=1).plan.describe()
    fast = compile(model, x, precision="auto", threads=1, calibration=x)
    assert "int8 activations" in fast.plan.describe()
    assert close(fast, model, x, 0.02)


def test_a_convolution_that_is_cheapest_in_two_bits_a_weight_says_so(costs):
    costs(conv_int8=0.5, **{"conv_two-bit": 0.1}, conv_dense=9.0)
    model, x = network(), torch.rand(8, 3, 6, 6)
    assert (
        "two bits" not in compile(model, x, precision="auto", threads=1).plan.describe()
    )
    fast = compile(model, x, precision="auto", threads=1, calibration=x)
    assert "two-bit chosen: sign" in fast.plan.describe()
    assert "dense codes, int8 activations" in fast.plan.describe()
    assert close(fast, model, x, 0.02)


def test_8_bit_linear_layers_cost_less_where_most_is_zero_and_never_more_than_all_their_weights():
    table = Costs(
        nanoseconds=one_nanosecond()
        | {"rows.int8@1": 0.4, "rows.int8@0.1": 1.5, "rows.int8@0.02": 3.0}
    )
    found = [
        table.of("rows", "int8", density) for density in (0.02, 0.1, 0.2, 0.5, 1.0)
    ]
    assert found == pytest.approx([0.06, 0.15, 0.3, 0.4, 0.4])


def test_a_cpu_without_lists_of_bytes_pays_for_every_weight_however_many_are_zero():
    table = Costs(
        nanoseconds=one_nanosecond()
        | {"rows.int8@1": 0.4, "rows.int8@0.1": 4.0, "rows.int8@0.02": 20.0}
    )
    found = [
        table.of("rows", "int8", density)
        for density in (0.0, 0.02, 0.05, 0.1, 0.5, 1.0)
    ]
    assert found == pytest.approx([0.4] * 6)


def test_what_lists_cost_however_few_weights_they_hold_is_paid_once():
    few, more, most = ((0.3 + d) / d for d in (0.02, 0.1, 0.6))
    table = Costs(
        nanoseconds=one_nanosecond()
        | {"rows.sign@0.02": few, "rows.sign@0.1": more, "rows.sign@0.6": most}
    )
    found = [
        table.of("rows", "sign", density) for density in (0.02, 0.06, 0.1, 0.3, 0.6)
    ]
    assert found == pytest.approx([0.32, 0.36, 0.4, 0.6, 0.9])


def test_lists_shorter_than_those_measured_are_not_taken_for_free():
    table = Costs(nanoseconds=one_nanosecond())
    assert (
        table.of("rows", "sign", 0.0)
        == table.of("rows", "sign", 0.02)
        < table.of("rows", "sign", 0.03)
    )


def test_fewer_non_zeros_make_lists_cheaper_but_not_dense_products():
    table = Costs(nanoseconds=one_nanosecond())
    assert table.of("conv", "sign", 0.1) < table.of("conv", "sign", 0.5)
    assert table.of("conv", "dense", 0.1) == table.of("conv", "dense", 0.5)


def test_a_measurement_is_made_once_and_then_read(monkeypatch, tmp_path):
    monkeypatch.setenv("TERSIFY_CACHE_DIR", str(tmp_path / "new" / "folder"))
    made = []
    monkeypatch.setattr(
        costs_module, "measure", lambda module: made.append(1) or one_nanosecond()
    )
    first, second = costs_of_this_cpu(extension), costs_of_this_cpu(extension)
    assert len(made) == 1
    assert first == second
    assert [p.suffix for p in (tmp_path / "new" / "folder").iterdir()] == [".json"]


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps(one_nanosecond(exchange=-1.0)),
        '{"conv.sign@0.1": "x"}',
    ],
)
def test_a_damaged_cache_is_ignored_with_one_warning_and_written_again(
    monkeypatch, tmp_path, damaged
):
    monkeypatch.setenv("TERSIFY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(costs_module, "measure", lambda module: one_nanosecond())
    cache_file(extension).write_text(damaged)
    with pytest.warns(RuntimeWarning, match="cannot be read") as seen:
        costs_of_this_cpu(extension)
    assert len(seen) == 1
    assert json.loads(cache_file(extension).read_text()) == one_nanosecond()


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TERSIFY_CACHE_DIR", str(tmp_path / "file" / "folder"))
    monkeypatch.setattr(costs_module, "measure", lambda module: one_nanosecond())
    monkeypatch.setattr(costs_module, "_read", lambda path: None)
    assert costs_of_this_cpu(extension).nanoseconds == one_nanosecond()


def test_every_instruction_set_has_costs_of_its_own(monkeypatch):
    paths = set()
    for isa in extension.isas():
        monkeypatch.setenv("TERSIFY_ISA", isa)
        paths.add(cache_file(extension))
    assert len(paths) == len(extension.isas())


def test_every_family_can_be_measured(isa):
    measured = costs_module.measure(extension)
    assert set(measured) == set(keys())
    assert min(measured.values()) > 0
