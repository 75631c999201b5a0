"""The self-check of int8: a right network that amplifies its last bits is kept, a wrong
kernel in it is not.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from tersify.runtime import compile
from tersify.runtime.check import (
    ROUNDED_TOLERANCE,
    difference,
    differs_from_reference,
)
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops import Linear, LinearKernel
from tersify.runtime.reference import run_reference

pytest.importorskip("tersify._runtime")
pytestmark = pytest.mark.usefixtures("kernels_win")

WIDTH, DEPTH = 128, 24


def layers() -> nn.Sequential:
    """Each layer makes of a difference in what it reads one many times as large."""
    made: list[nn.Module] = []
    for _ in range(DEPTH):
        layer = nn.Linear(WIDTH, WIDTH)
        layer.weight.data = 0.3 * torch.randint(-1, 2, (WIDTH, WIDTH)).float()
        made += [layer, nn.Tanh()]
    return nn.Sequential(*made).eval()


@pytest.fixture
def chaos():
    torch.manual_seed(0)
    return layers(), torch.randn(256, WIDTH)


def int8_layers(fast) -> int:
    kernels = (getattr(node.op, "kernel", None) for node in fast.plan.nodes)
    return sum(kernel is LinearKernel.I8 for kernel in kernels)


def test_a_right_network_that_amplifies_its_last_bits_stays_int8(chaos):
    model, x = chaos
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = compile(model, x, precision="int8", threads=1)
    assert int8_layers(fast) == DEPTH
    network = fast._sizes.first.network
    assert differs_from_reference(network, [x]) > ROUNDED_TOLERANCE
    # The reference itself ends as far away where the last bits of its input change.
    moved = x * (1 + 1e-6 * torch.randn(x.shape))
    with torch.no_grad():
        (one,), (other,) = (run_reference(fast.plan, [each]) for each in (x, moved))
    assert difference(one, other) > ROUNDED_TOLERANCE


def test_a_wrong_kernel_in_such_a_network_is_named_and_fp32_runs(chaos, monkeypatch):
    right = Linear.emit

    def wrong(self: Linear, emitter, node) -> int:
        value = right(self, emitter, node)
        if self.kernel is not LinearKernel.I8 or self.parameter != "6.weight":
            return value
        emitter.belongs_to(node, value)
        factor = Epilogue(scale=torch.tensor([1.02], dtype=torch.float64))
        channels = emitter.engine.shape(value)[1]
        scaled = factor.in_cpp(emitter.module, channels)
        return emitter.engine.elementwise(value, -1, False, scaled)

    monkeypatch.setattr(Linear, "emit", wrong)
    model, x = chaos
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fast = compile(model, x, precision="int8", threads=1)
    # Those after it are of fp32, in which this network amplifies last bits, too.
    first = str(seen[0].message)
    assert "int8 kernels disagree with their reference" in first
    assert "linear '6.weight' by 2.0e-02" in first
    assert int8_layers(fast) == 0
    with pytest.raises(ValueError, match="compile without strict=True"):
        compile(model, x, precision="int8", threads=1, strict=True)
