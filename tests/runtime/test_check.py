"""The self-check: a kernel that is wrong goes back to torch with one warning that names
it; strict raises.
"""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

from tersify.runtime import compile
from tersify.runtime.check import FP32_TOLERANCE, difference
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import Conv, Elementwise, LayerNorm, Linear, Softmax

pytest.importorskip("tersify._runtime")
pytestmark = pytest.mark.usefixtures("kernels_win")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.ReLU(),
        nn.Conv2d(6, 4, 3),
        nn.Flatten(),
        nn.Linear(64, 5),
        nn.Softmax(-1),
    ).eval()


@pytest.fixture
def make_wrong(monkeypatch):
    """Kernels of one kind whose results are off, by default by a hair more than
    rounding explains.
    """

    def wrong(op, where=lambda node: True, factor=1 + 10 * FP32_TOLERANCE):
        right = op.emit

        def emit(self, emitter, node):
            value = right(self, emitter, node)
            if not where(node):
                return value
            emitter.belongs_to(node, value)
            channels = emitter.engine.shape(value)[1]
            scaled = Epilogue(scale=torch.tensor([factor], dtype=torch.float64)).in_cpp(
                emitter.module, channels
            )
            return emitter.engine.elementwise(value, -1, False, scaled)

        monkeypatch.setattr(op, "emit", emit)

    return wrong


def right(fast, model, x) -> bool:
    with torch.no_grad():
        return torch.allclose(fast(x), model(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("op", "kind"), [(Linear, "linear"), (Softmax, "softmax")])
def test_a_wrong_kernel_is_sent_back_to_torch_with_one_warning(make_wrong, op, kind):
    make_wrong(op)
    model, x = network(), torch.randn(2, 3, 8, 8)
    with pytest.warns(
        RuntimeWarning,
        match=f"the kernel of {kind} .* disagreed with torch by .*, so torch runs it",
    ) as seen:
        fast = compile(model, x, threads=1)
    assert len(seen) == 1
    assert "its kernel disagreed with torch" in fast.plan.describe()
    assert right(fast, model, x)


def test_only_the_layer_that_is_wrong_goes_and_is_named_by_its_parameter(make_wrong):
    make_wrong(Conv, where=lambda node: node.op.parameter == "2.weight", factor=1.05)
    model, x = network(), torch.randn(2, 3, 8, 8)
    with pytest.warns(
        RuntimeWarning, match=r"the kernel of conv '2\.weight' disagreed"
    ) as seen:
        fast = compile(model, x, threads=1)
    assert len(seen) == 1
    assert [node.in_torch for node in fast.plan.nodes if isinstance(node.op, Conv)] == [
        False
    ]
    assert right(fast, model, x)


def test_a_wrong_kernel_of_an_operation_with_several_results_is_found(make_wrong):
    """Torch's layer norm also gives means and deviations; the kernel makes the norm
    alone.
    """
    make_wrong(LayerNorm)
    model, x = (
        nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 2)).eval(),
        torch.randn(2, 3, 6),
    )
    with pytest.warns(
        RuntimeWarning, match="the kernel of layer norm .* disagreed"
    ) as seen:
        fast = compile(model, x, threads=1)
    assert len(seen) == 1
    assert right(fast, model, x)


def test_every_wrong_layer_goes(make_wrong):
    make_wrong(Conv, factor=1.05)
    make_wrong(Linear, factor=1.05)
    model, x = network(), torch.randn(2, 3, 8, 8)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fast = compile(model, x, threads=1)
    named = "".join(str(w.message) for w in seen)
    assert all(f"'{name}'" in named for name in ("0.weight", "2.weight", "4.weight"))
    assert right(fast, model, x)


def test_strict_raises_instead(make_wrong):
    make_wrong(Linear)
    with pytest.raises(
        ValueError,
        match=r"the kernel of linear '4\.weight' disagreed .* compile without strict=True",
    ):
        compile(network(), torch.randn(2, 3, 8, 8), threads=1, strict=True)


def test_a_kernel_that_is_wrong_at_another_size_only_is_found_there(make_wrong):
    make_wrong(Linear, where=lambda node: node.shape[0] == 5)
    model = network()
    fast = compile(model, torch.randn(2, 3, 8, 8), threads=1, strict=True)
    x = torch.randn(5, 3, 8, 8)
    with pytest.raises(ValueError, match="disagreed with torch"):
        fast(x)
    assert right(fast, model, torch.randn(2, 3, 8, 8))


def test_a_wrong_kernel_behind_a_fused_output_is_found(make_wrong):
    """The value that leaves the network has the name of what was fused away."""
    make_wrong(Conv)
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(),
        torch.randn(2, 3, 8, 8),
    )
    with pytest.warns(RuntimeWarning, match=r"conv '0\.weight'"):
        fast = compile(model, x, threads=1)
    assert right(fast, model, x)


@pytest.mark.parametrize("position", range(3))
def test_a_wrong_kernel_is_found_in_any_output(make_wrong, position):
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x):
            return {str(i): layer(x).relu() for i, layer in enumerate(self.layers)}

    make_wrong(
        Linear, where=lambda node: node.op.parameter == f"layers.{position}.weight"
    )
    with pytest.warns(RuntimeWarning, match=rf"'layers\.{position}\.weight'"):
        compile(Three(), torch.randn(2, 4), threads=1)


def test_sound_kernels_are_silent(make_wrong):
    make_wrong(Elementwise, where=lambda node: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(network(), torch.randn(2, 3, 8, 8), threads=1, strict=True)


@pytest.mark.parametrize(
    ("made", "wanted", "apart"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), 0.2),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0]), math.inf),
        (torch.tensor([1.0]), torch.tensor([1]), math.inf),
        (torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0]), 0.0),
        (torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0]), math.inf),
        (torch.tensor([math.inf]), torch.tensor([math.nan]), math.inf),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), math.inf),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), math.inf),
        (torch.tensor([2 + 1j]), torch.tensor([2 + 1.5j]), 0.25),
        (torch.tensor([2 - 1j]).conj(), torch.tensor([2 + 1j]), 0.0),
        (torch.zeros(0), torch.zeros(0), 0.0),
        (torch.zeros(3), torch.zeros(3), 0.0),
    ],
)
def test_a_difference_is_a_fraction_of_the_largest_number(made, wanted, apart):
    assert difference(made, wanted) == pytest.approx(apart)
