"""What a ternary session adds to a training step, counted in calls: time is for the benchmark to measure."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tersify
from tersify import Recipe, Rule
from tersify.methods import Ternary

GROWING = Recipe(rules=[Rule(methods=[Ternary(regime="log")])])


class _CountedOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def _ops_of_a_step(layers, *, ternary, autocast):
    """Of the third step: in the first nothing is known yet of what autocast will ask for."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Conv2d(4, 4, 1, bias=False) for _ in range(layers)])
    session = (
        tersify.attach(model, Recipe(rules=[Rule(methods=[Ternary(regime="log")])]), epochs=9, steps_per_epoch=1)
        if ternary
        else None
    )
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for _ in range(3):
        with _CountedOps() as ops:
            if session:
                session.step()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(torch.ones(2, 4, 3, 3)).float().square().mean()
            if session:
                loss = loss + session.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return ops.counts


@pytest.mark.parametrize("autocast", [False, True])
def test_what_a_session_adds_to_a_step_are_a_few_calls_whatever_the_number_of_layers(autocast):
    added = {}
    for layers in (2, 12):
        plain, ours = (_ops_of_a_step(layers, ternary=ternary, autocast=autocast) for ternary in (False, True))
        assert ours.pop("aten.clamp_") == layers  # on a CPU alone, where each latent is better read once
        added[layers] = sum(ours.values()) - sum(plain.values())
        if autocast:  # each weight and each gradient is spared its cast
            assert plain["aten._to_copy"] - ours["aten._to_copy"] == 2 * layers
            added[layers] += 2 * layers
    assert added[2] == added[12] <= 8


def test_off_the_cpu_the_calls_of_a_step_are_the_same_for_any_number_of_layers():
    counts = []
    for layers in (2, 12):
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)]).to("meta")
        session = tersify.attach(model, GROWING, epochs=9, steps_per_epoch=1)
        with _CountedOps() as ops:
            session.step()
        counts.append(ops.counts)
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) <= 8
