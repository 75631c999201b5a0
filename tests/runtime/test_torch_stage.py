"""Consecutive torch calls: the module's own results, and no value outlives its last
use.
"""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn

from tersify.runtime import compile
from tersify.runtime.capture import capture
from tersify.runtime.lower import lower
from tersify.runtime.torch_stage import TorchStage

pytest.importorskip("tersify._runtime")


def stage_of(forward, *inputs):
    class Net(nn.Module):
        def forward(self, *x):
            return forward(*x)

    graph = capture(Net(), inputs, {}).graph
    everything = frozenset(name for call in graph.calls for name in call.results)
    plan = lower(graph, refused=everything)
    return plan, TorchStage(plan.nodes, plan.constants, set(plan.outputs))


def watching(alive):
    """A call that notes which of the tensors it was shown before still exist."""
    seen = []

    def look(x):
        seen.append(weakref.ref(x))
        alive.append(sum(ref() is not None for ref in seen))
        return x

    return look


def test_values_are_dropped_after_their_last_use():
    plan, stage = stage_of(
        lambda x: (((x.cumsum(0) + 1).sin() + 2).cos() * 3).tanh(), torch.randn(4, 4)
    )
    alive: list[int] = []
    look = watching(alive)

    def watched(node):
        target = node.op.target
        return replace(
            node,
            op=replace(
                node.op, target=lambda *args, **kwargs: look(target(*args, **kwargs))
            ),
        )

    nodes = tuple(watched(node) for node in plan.nodes)
    looking = TorchStage(nodes, plan.constants, set(plan.outputs))
    x = torch.randn(4, 4)
    assert torch.equal(looking.run(x)[0], stage.run(x)[0])
    assert len(alive) == len(nodes) >= 6
    assert max(alive) == 2  # what a call reads and what it makes


def test_a_value_that_is_an_output_or_read_later_is_kept():
    def forward(x):
        a = x.cumsum(0)
        b = a.sin()
        return a, b + a, b

    x = torch.randn(3, 4)
    plan, stage = stage_of(forward, x)
    made = dict(zip(stage.outputs, stage.run(x), strict=True))
    for name, wanted in zip(plan.outputs, forward(x), strict=True):
        assert torch.equal(made[name], wanted)


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: torch.stack([x, x + 1, torch.ones(3, 4)]),
        lambda x: torch.cat((x, x.flip(0)), dim=-1),
        lambda x: x[torch.tensor([0, 2]), :].topk(2, dim=1)[1],
        lambda x: x.sort(1)[0] + x.sort(1)[1],
        lambda x: x.to(torch.float64).sum(dtype=torch.float64),
        lambda x: x.new_full((2, 2), float("inf")) + x[:2, :2],
        lambda x: torch.where(x > 0, x, torch.tensor(float("nan"))).nan_to_num(0.5),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.nn.functional.pad(x, (1, 0), value=-float("inf")),
        lambda x: x.split([1, 2])[1] * 2,
        lambda x: x.std(1, correction=0),
    ],
)
def test_arguments_of_every_kind_reach_their_calls(forward):
    x = torch.randn(3, 4)
    _, stage = stage_of(forward, x)
    (made,) = stage.run(x)
    assert torch.equal(made, forward(x))


def test_several_results_of_one_call_are_told_apart():
    x = torch.randn(3, 4)
    plan, stage = stage_of(lambda x: (x.max(1).indices, x.max(1).values), x)
    made = dict(zip(stage.outputs, stage.run(x), strict=True))
    indices, values = (made[name] for name in plan.outputs)
    assert torch.equal(indices, x.argmax(1))
    assert torch.equal(values, x.amax(1))


def test_a_stage_does_not_change_its_inputs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            y = x.cumsum(0)
            return (self.layer(y) + y).relu(), y

    model, x = Net().eval(), torch.randn(3, 4)
    kept = x.clone()
    made, y = compile(model, x)(x)
    with torch.no_grad():
        assert torch.allclose(made, model(x)[0], atol=1e-6)
    assert torch.equal(y, x.cumsum(0))
    assert torch.equal(x, kept)
