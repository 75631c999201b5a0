"""Times of the single operations: all of them, under the names people know, whatever runs them."""

from __future__ import annotations

from time import perf_counter

import pytest
import torch
from torch import nn

from tersify.runtime import compile
from tersify.runtime import engine as engine_module

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


def test_the_times_of_a_run_fit_into_its_wall_time():
    fast = compile(nn.Sequential(*(nn.Conv2d(16, 16, 3) for _ in range(4))), torch.randn(1, 16, 40, 40), threads=2)
    x = torch.randn(8, 16, 40, 40)
    fast(x)
    start = perf_counter()
    spent = sum(op.microseconds for op in fast.profile(x, repeats=4))
    assert 0 < spent < 1e6 * (perf_counter() - start) / 4


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
