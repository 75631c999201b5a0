"""What a session adds to a training step, counted in calls: time is for the benchmark
to measure.
"""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tersify
from tersify import Recipe, Rule
from tersify.methods import Method, from_table, registered

# Tensors that share another's memory: made by the host in a moment, and never launched.
VIEWS = {
    "aten.view",
    "aten.slice",
    "aten.split",
    "aten.unbind",
    "aten.select",
    "aten.detach",
    "aten.alias",
    "aten.t",
    "aten.split_with_sizes",
    "aten.unsqueeze",
    "aten.expand",
}
# A table is searched, and a layer's scores are put in order, one by one. What the bits
# cost is a second gradient of each latent, which autograd adds to the first.
PER_LAYER = {"lookup": 2, "prune": 5, "rate": 1}
MOST_ADDED = {
    "binary": 9,
    "bitnet": 12,
    "ttq": 47,
    "ec2t": 77,
    "energy": 6,
    "prune": 18,
    "kmeans": 38,
    "lookup": 37,
    "rate": 33,
    "ternary": 12,
    "ternary-target": 8,
    "trq": 28,
    "twn": 23,
    "uniform": 19,
}


class _CountedOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if (name := str(func.overloadpacket)) not in VIEWS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def _method(name: str) -> Method:
    return from_table(
        {"method": name, **({"stagnation": 1e-6} if name == "energy" else {})}
    )


def _ops_of_a_step(layers, *, method, autocast=False):
    """Of the third step: in the first nothing is known yet of what autocast will ask
    for.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        *[
            m
            for _ in range(layers)
            for m in (nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8))
        ]
    )
    model.append(nn.Linear(8, 3))
    weights = [f"{2 * index}.weight" for index in range(layers)]
    session = None
    if method is not None:
        recipe = Recipe(rules=[Rule(weights=weights, methods=[method])])
        session = tersify.attach(model, recipe, epochs=90, steps_per_epoch=90)
    optimizer = torch.optim.Adam(
        session.param_groups() if session else model.parameters(), fused=True
    )
    x, labels = torch.randn(6, 8), torch.arange(6) % 3
    for _ in range(3):
        with _CountedOps() as ops:
            if session:
                session.step(x, labels)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(model(x).float(), labels)
            if session:
                loss = loss + session.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return ops.counts


def _added(layers, method, **settings):
    plain, ours = (_ops_of_a_step(layers, method=m, **settings) for m in (None, method))
    return sum(ours.values()) - sum(plain.values())


@pytest.mark.parametrize("name", registered())
def test_what_a_session_adds_to_a_step_are_a_few_calls_whatever_the_number_of_layers(
    name,
):
    few, many = (_added(layers, _method(name)) for layers in (2, 12))
    assert many - few <= 10 * PER_LAYER.get(name, 0)
    assert few <= MOST_ADDED[name]


@pytest.mark.parametrize("name", ["ternary", "ternary-target", "binary"])
def test_under_autocast_each_weight_and_each_gradient_is_spared_its_cast(name):
    for layers in (2, 12):
        plain, ours = (
            _ops_of_a_step(layers, method=m, autocast=True)
            for m in (None, _method(name))
        )
        # one cast each way for all of them
        assert plain["aten._to_copy"] - ours["aten._to_copy"] == 2 * layers - 2


@pytest.mark.parametrize("name", ["ternary", "ternary-target"])
def test_off_the_cpu_the_calls_of_a_step_are_the_same_for_any_number_of_layers(name):
    counts = []
    for layers in (2, 12):
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)]).to("meta")
        session = tersify.attach(
            model,
            Recipe(rules=[Rule(methods=[_method(name)])]),
            epochs=9,
            steps_per_epoch=999,
        )
        session._steps_done = 1  # between two measurements of the fraction of zeros
        for bound in (work.bound for work in session._work):
            bound._equal_at[:] = [t.threshold._version for t in bound.transforms]
        with _CountedOps() as ops:
            session.step()
        counts.append(ops.counts)
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) <= 10


def test_a_network_too_large_for_a_second_copy_of_its_weights_gets_none(monkeypatch):
    monkeypatch.setattr("tersify.methods.prepare.MOST_PREPARED", 10)
    few, many = (_added(layers, _method("ternary")) for layers in (2, 4))
    assert many > few


def test_a_session_that_ended_prepares_nothing():
    model = nn.Linear(4, 4)
    session = tersify.attach(model, Recipe(rules=[Rule(methods=[_method("ternary")])]))
    session.step()
    session.bake_()
    with _CountedOps() as ops:
        session.step()
    assert not ops.counts
