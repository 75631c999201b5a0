"""Times of the single operations: all of them, under the names people know, whatever runs them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tersify.runtime import compile, op_times
from tersify.runtime import engine as engine_module
from tersify.runtime.plan import Node, Plan

pytest.importorskip("tersify._runtime")


class Net(nn.Module):
    """A convolution, something that has no kernel, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).cumsum(2).mean((2, 3)))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 9])
def test_every_operation_has_its_time_its_kernel_and_the_name_of_its_weight(batch, threads):
    fast = compile(Net(), torch.randn(1, 3, 8, 8), threads=threads)
    times = fast.profile(torch.randn(batch, 3, 8, 8), repeats=3)
    assert [time.name for time in times] == [node.name for node in fast.plan.nodes]
    found = {time.parameter: time for time in times if time.parameter}
    assert set(found) == {"conv.weight", "head.weight"}
    assert "sparse table" in found["conv.weight"].kernel
    assert {time.kind: time.kernel for time in times}["torch"] == "torch"
    assert all(time.microseconds > 0 for time in times)


def test_the_time_of_an_operation_is_the_median_without_the_first_run(monkeypatch):
    """By a clock of ours: a run's own, longest in the first, which packs and allocates."""
    run = iter([900.0, 2.0, 3.0, 50.0])

    def steps(*_):
        lasted = next(run)
        yield "a", "kernel", lasted
        yield "a", "second kernel", 1.0

    monkeypatch.setattr(op_times, "_steps", steps)
    plan = Plan(inputs=(), nodes=(Node(name="a", kind="torch", inputs=(), shape=()),), outputs=(), constants={})
    (only,) = op_times.profile(plan, [], [], repeats=3)
    assert (only.microseconds, only.kernel) == (4.0, "kernel + second kernel")


def test_a_plan_in_plain_torch_has_times_too(monkeypatch):
    monkeypatch.setattr(engine_module.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    engine_module.extension.cache_clear()
    with pytest.warns(RuntimeWarning, match="compiled kernels are missing"):
        fast = compile(Net(), torch.randn(1, 3, 8, 8))
    engine_module.extension.cache_clear()
    assert {time.kernel for time in fast.profile(torch.randn(1, 3, 8, 8), repeats=1)} == {"torch"}


def test_no_repeat_is_refused():
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        compile(Net(), torch.randn(1, 3, 8, 8)).profile(torch.randn(1, 3, 8, 8), repeats=0)


def test_dense_kernels_have_names():
    few, table = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 64)
    few.weight.data = few.weight.data.sign()
    table.weight.data = (4 * table.weight.data / table.weight.abs().max()).round()
    fast = compile(nn.Sequential(few, nn.Flatten(), table), torch.randn(2, 3, 8, 8), precision="int8", threads=1)
    kernels = {time.parameter: time.kernel for time in fast.profile(torch.randn(2, 3, 8, 8), repeats=1)}
    assert kernels["0.weight"] == "dense signs, int8"
    assert "dense table, int8" in kernels["2.weight"]
