"""Times of the single operations: all of them, under the names people know, whatever
runs them.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tersify.runtime import compile, compiling

pytest.importorskip("tersify._runtime")


class Net(nn.Module):
    """A convolution, something that has no kernel, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).cumsum(2).mean((2, 3)))


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 9])
def test_every_operation_has_its_time_its_kernel_and_the_name_of_its_weight(
    batch, threads
):
    fast = compile(Net(), torch.randn(batch, 3, 8, 8), threads=threads)
    times = fast.profile(torch.randn(batch, 3, 8, 8), repeats=3)
    assert [time.name for time in times] == [node.name for node in fast.plan.nodes]
    found = {time.parameter: time for time in times if time.parameter}
    assert set(found) == {"conv.weight", "head.weight"}
    assert "sparse table" in found["conv.weight"].kernel
    assert {time.kind: time.kernel for time in times}["torch call"] == "torch"
    assert all(time.microseconds > 0 for time in times)


@pytest.mark.usefixtures("kernels_win")
def test_every_step_of_the_engine_belongs_to_a_node():
    model = nn.Sequential(
        nn.Conv2d(16, 16, 3),
        nn.Flatten(1),
        nn.ReLU(),
        nn.Linear(16 * 36, 7),
        nn.Softmax(-1),
    )
    x = torch.randn(3, 16, 8, 8)
    fast = compile(model, x, threads=2)
    (segment,) = fast._sizes.first.network.stages
    _, steps = segment.profile([x])
    assert {name for name, _, _ in steps} <= {node.name for node in fast.plan.nodes}
    assert all(time.kernel for time in fast.profile(x, repeats=1) if time.parameter)


@pytest.mark.usefixtures("kernels_win")
def test_a_size_unlike_the_example_is_profiled_with_its_own_plan():
    fast = compile(Net(), torch.randn(1, 3, 8, 8), threads=1)
    times = fast.profile(torch.randn(2, 3, 11, 9), repeats=1)
    assert {time.parameter for time in times if time.parameter} == {
        "conv.weight",
        "head.weight",
    }


def test_a_plan_in_plain_torch_has_times_too(monkeypatch):
    monkeypatch.setattr(compiling, "extension", lambda: None)
    fast = compile(Net(), torch.randn(1, 3, 8, 8))
    times = fast.profile(torch.randn(1, 3, 8, 8), repeats=1)
    assert {time.kernel for time in times} == {"torch"}
    assert all(time.microseconds > 0 for time in times)


def test_profiling_leaves_inputs_and_state_as_a_call_would_not_change_them():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return x * self.count

    model, x = Counts(), torch.ones(2, 3)
    fast = compile(model, x)
    fast.profile(x, repeats=3)
    assert model.count == 0
    assert torch.equal(x, torch.ones(2, 3))


def test_no_repeat_is_refused():
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        compile(Net(), torch.randn(1, 3, 8, 8)).profile(
            torch.randn(1, 3, 8, 8), repeats=0
        )


@pytest.mark.usefixtures("kernels_win")
def test_dense_kernels_have_names():
    few, table = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 64)
    few.weight.data = few.weight.data.sign()
    table.weight.data = (4 * table.weight.data / table.weight.abs().max()).round()
    fast = compile(
        nn.Sequential(few, nn.Flatten(), table),
        torch.randn(2, 3, 8, 8),
        precision="int8",
        threads=1,
    )
    kernels = {
        time.parameter: time.kernel
        for time in fast.profile(torch.randn(2, 3, 8, 8), repeats=1)
    }
    assert kernels["0.weight"] == "dense signs, int8"
    assert "dense table, int8" in kernels["2.weight"]
