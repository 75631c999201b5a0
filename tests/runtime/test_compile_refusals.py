"""tersify.compile says in words which networks, examples, inputs and options it does
not take.
"""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            torch.randn(2, 4, 32, 32),
            r"Conv2d does not take an input of 2×4×32×32 \(RuntimeError: .*; give one of the",
        ),
        (
            torch.randn(2, 3, 32, 32, dtype=torch.float64),
            r"Conv2d does not take an input of 2×3×32×32",
        ),
        (torch.randn(2, 3, 32, 32).to_sparse(), "dense CPU tensor"),
        (torch.randn(2, 3, 32, 32, device="meta"), "dense CPU tensor"),
        (
            object(),
            "an input is a object; compile takes tensors, numbers and containers",
        ),
    ],
)
def test_an_input_that_the_module_does_not_take_is_refused(x, message):
    with pytest.raises(ValueError, match=message):
        compile(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 32, 32))(x)


def test_the_number_of_inputs_is_the_module_s():
    fast = compile(nn.Linear(4, 3), torch.randn(1, 4))
    with pytest.raises(
        ValueError, match=r"Linear does not take an input of 1×4 and 1 \(TypeError"
    ):
        fast(torch.randn(1, 4), torch.randn(1))
    with pytest.raises(
        ValueError, match=r"Linear does not take an input .*\(TypeError"
    ):
        fast()


def test_a_compiled_network_says_that_it_cannot_be_copied():
    fast = compile(nn.Linear(4, 3), torch.randn(1, 4))
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(
            TypeError, match=r"packed for this CPU .* compile that again"
        ):
            copied(fast)


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        ([], "calibration holds no batch; give one, or leave it out"),
        (3, "calibration must be a tensor, or batches of inputs, got a int"),
        (
            torch.randn(2, 5),
            r"a calibration batch does not fit: Linear does not take an input of 2×5",
        ),
        (
            [torch.randn(2, 4), "x"],
            "a calibration batch does not fit: the example holds no tensor",
        ),
        (
            [(torch.randn(2, 4), torch.ones(2))],
            "a calibration batch does not fit: .* input of 2×4 and 2",
        ),
    ],
)
def test_calibration_unlike_the_example_is_refused(calibration, message):
    with pytest.raises(ValueError, match=message):
        compile(
            nn.Linear(4, 3),
            torch.randn(1, 4),
            precision="int8",
            calibration=calibration,
        )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(value):
    layer = nn.Linear(4, 3)
    layer.weight.data[1, 2] = value
    with pytest.raises(ValueError, match=r"'weight' holds NaN or infinite weights"):
        compile(layer, torch.randn(1, 4))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_rows_is_refused_by_name_and_one_without_features_is_torch_s():
    with pytest.raises(ValueError, match=r"'weight' of shape .* holds no weights"):
        compile(nn.Linear(4, 0), torch.randn(1, 4))
    layer, x = nn.Linear(0, 3), torch.randn(2, 0)
    assert torch.equal(compile(layer, x)(x), layer(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "precision must be one of"),
        ({"threads": 0}, "threads must be 1..1024, got 0"),
        ({"threads": "2"}, "threads must be 1..1024, got '2'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        compile(nn.Linear(4, 3), torch.randn(1, 4), **options)


class FixedBatch(nn.Module):
    def forward(self, x):
        return torch.relu(x.reshape(2, 3, 4))


def test_a_model_that_fixes_its_batch_size_runs_that_one_and_refuses_others():
    fast = compile(FixedBatch(), torch.randn(2, 12))
    x = torch.randn(2, 12)
    assert torch.equal(fast(x), FixedBatch()(x))
    with pytest.raises(
        ValueError, match=r"FixedBatch does not take an input of 3×12 \(RuntimeError"
    ):
        fast(torch.randn(3, 12))


def test_an_example_that_the_model_itself_does_not_take_is_named_with_its_shape():
    with pytest.raises(
        ValueError,
        match=r"Linear does not take an input of 2×3 \(RuntimeError: .*; give one of the",
    ):
        compile(nn.Linear(4, 3), torch.randn(2, 3))


@pytest.mark.parametrize("example", [3, (), ["x"], {}])
def test_an_example_without_a_tensor_is_refused(example):
    with pytest.raises(ValueError, match="the example holds no tensor; give one input"):
        compile(nn.Linear(4, 3), example)


def test_only_language_models_need_no_example():
    with pytest.raises(
        ValueError,
        match="compile needs an example input of Linear; only causal language models",
    ):
        compile(nn.Linear(4, 3), None)


def test_an_example_of_another_kind_of_tensor_or_a_module_that_is_none_is_refused():
    with pytest.raises(
        ValueError, match=r"inputs must be dense CPU tensors, got torch\.sparse_coo"
    ):
        compile(nn.Linear(4, 3), torch.ones(2, 4).to_sparse())
    with pytest.raises(
        ValueError, match=r"compile takes a torch\.nn\.Module, got a function"
    ):
        compile(lambda x: x, torch.randn(1, 4))


def test_an_example_without_items_compiles_and_other_sizes_follow():
    layer = nn.Linear(4, 3)
    fast = compile(layer, torch.randn(0, 4))
    x = torch.randn(5, 4)
    assert fast(torch.randn(0, 4)).shape == (0, 3)
    assert torch.allclose(fast(x), layer(x), atol=1e-6)


def test_an_instruction_set_that_the_cpu_lacks_is_refused(monkeypatch):
    monkeypatch.setenv("TERSIFY_ISA", "avx1024")
    with pytest.raises(
        ValueError, match=r"TERSIFY_ISA='avx1024': this CPU has kernels for portable"
    ):
        compile(nn.Linear(4, 3), torch.randn(1, 4))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused_in_one_sentence(layout):
    fast = compile(nn.Linear(4, 3).eval(), torch.randn(2, 4))
    rows = [torch.randn(2, 4), torch.randn(3, 4)]
    with pytest.raises(ValueError, match="a quantized or nested one"):
        fast(torch.nested.nested_tensor(rows, layout=layout))
