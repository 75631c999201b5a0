"""Fusing changes how a network is computed and never what: what somebody else reads
keeps its numbers.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tersify.runtime import compile, run_reference
from tersify.runtime.capture import capture
from tersify.runtime.lower import lower
from tersify.runtime.passes import fuse

pytest.importorskip("tersify._runtime")
pytestmark = pytest.mark.usefixtures("kernels_win")


class Net(nn.Module):
    def __init__(self, forward) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.linear, self.does = nn.Linear(8, 8), forward
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.does(self, x)


def fused(model, x):
    """The plan of kernels only, and that it still computes the module."""
    plan = fuse(lower(capture(model.eval(), (x,), {}).graph))
    with torch.no_grad():
        wanted = model(x)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for made, right in zip(run_reference(plan, [x]), wanted, strict=True):
        assert torch.allclose(made, right, atol=1e-5)
    found = compile(model, x, threads=1)(x)
    for made, right in zip(
        found if isinstance(found, tuple) else (found,), wanted, strict=True
    ):
        assert torch.allclose(made, right, atol=1e-5)
    return [node.kind for node in plan.nodes]


ALONE = {
    "an activation": lambda m, x: m.conv(x).relu(),
    "a norm": lambda m, x: m.norm(m.conv(x)),
    "a residual": lambda m, x: m.conv(x) + x,
    "a residual, a norm and an activation": lambda m, x: F.relu(m.norm(m.conv(x) + x)),
    "numbers": lambda m, x: m.conv(x) * 2 + 1,
    "a mean": lambda m, x: m.conv(x).mean((2, 3)),
    "a mean and its shape": lambda m, x: F.adaptive_avg_pool2d(m.conv(x), 1).flatten(1),
    "maxima": lambda m, x: F.max_pool2d(m.conv(x), 2),
    "an activation behind the mean": lambda m, x: m.conv(x).mean((2, 3)).relu(),
}


@pytest.mark.parametrize("what", ALONE)
def test_a_convolution_takes_in_what_alone_follows(what):
    assert fused(Net(ALONE[what]), torch.randn(2, 3, 8, 8)) == ["conv"]


def read_by_another(follow):
    def forward(m, x):
        y = m.conv(x)
        return follow(m, y), torch.sigmoid(y)

    return forward


FOLLOWERS = {
    "an activation": lambda m, y: y.relu(),
    "a norm": lambda m, y: m.norm(y),
    "a residual": lambda m, y: y + 2 * y,
    "numbers": lambda m, y: y * 2 + 1,
    "a mean": lambda m, y: y.mean((2, 3)),
    "a mean and its shape": lambda m, y: F.adaptive_avg_pool2d(y, 1).flatten(1),
    "maxima": lambda m, y: F.max_pool2d(y, 2),
    "a view and an activation": lambda m, y: y.flatten(1).relu(),
    "two views and an activation": lambda m, y: y.flatten(1).reshape(2, 4, -1).relu(),
}


@pytest.mark.parametrize("what", FOLLOWERS)
def test_what_another_operation_reads_stays_as_it_is(what):
    kinds = fused(Net(read_by_another(FOLLOWERS[what])), torch.randn(2, 3, 8, 8))
    assert len(kinds) >= 3


@pytest.mark.parametrize("what", FOLLOWERS)
def test_what_is_also_an_output_stays_as_it_is(what):
    def forward(m, x):
        y = m.conv(x)
        return y, FOLLOWERS[what](m, y)

    assert len(fused(Net(forward), torch.randn(2, 3, 8, 8))) >= 2


@pytest.mark.parametrize("what", FOLLOWERS)
def test_what_is_read_twice_by_one_operation_stays_right(what):
    def forward(m, x):
        y = FOLLOWERS[what](m, m.conv(x))
        return y * y

    fused(Net(forward), torch.randn(2, 3, 8, 8))


def a_view_that_is_an_output(m, x):
    v = m.conv(x).flatten(1)
    return v, v.relu()


def a_view_that_is_read_twice(m, x):
    v = m.conv(x).flatten(1)
    return v.relu() + v.sigmoid()


def a_mean_that_is_an_output(m, x):
    y = F.adaptive_avg_pool2d(m.conv(x), 1)
    return y, y.flatten(1)


def a_residual_that_is_an_output(m, x):
    y = m.conv(x)
    return y, y + x


def both_summands_are_convolutions(m, x):
    a, b = m.conv(x), m.conv(x * 2)
    return a + b, b


def the_sum_of_a_value_with_itself(m, x):
    y = m.conv(x)
    return y + y


def the_residual_is_made_later(m, x):
    y = m.conv(x)
    return y + torch.sigmoid(x)


def the_residual_is_activated_twice(m, x):
    return (m.conv(x).relu() + x).relu() * 2


def a_product_is_no_residual(m, x):
    return m.conv(x) * x


def a_scaled_sum(m, x):
    return (m.conv(x) + x) * 2


def a_residual_behind_numbers(m, x):
    return (m.conv(x) * 3 + 1) + x


def a_norm_behind_a_linear_layer_of_a_sequence(m, x):
    return m.norm(m.linear(x))


def an_activation_behind_a_linear_layer_of_a_sequence(m, x):
    return m.linear(x).relu()


def a_trivial_view_that_is_an_output(m, x):
    y = m.conv(x)
    return y.reshape(y.shape), y.relu()


def a_copy_that_is_written(m, x):
    y = m.conv(x)
    z = y.clone()
    z.relu_()
    return y, z


def maxima_of_maxima(m, x):
    return F.max_pool2d(F.max_pool2d(m.conv(x), 2), 2)


def a_mean_of_maxima(m, x):
    return F.max_pool2d(m.conv(x), 2).mean((2, 3))


def a_residual_behind_a_mean(m, x):
    return m.conv(x).mean((2, 3)) + x.mean((2, 3))


MIXED = [
    a_view_that_is_an_output,
    a_view_that_is_read_twice,
    a_mean_that_is_an_output,
    a_residual_that_is_an_output,
    both_summands_are_convolutions,
    the_sum_of_a_value_with_itself,
    the_residual_is_made_later,
    the_residual_is_activated_twice,
    a_product_is_no_residual,
    a_scaled_sum,
    a_residual_behind_numbers,
    a_norm_behind_a_linear_layer_of_a_sequence,
    an_activation_behind_a_linear_layer_of_a_sequence,
    a_trivial_view_that_is_an_output,
    a_copy_that_is_written,
    maxima_of_maxima,
    a_mean_of_maxima,
    a_residual_behind_a_mean,
]


@pytest.mark.parametrize("forward", MIXED, ids=lambda f: f.__name__)
def test_unusual_neighbours_stay_right(forward):
    fused(Net(forward), torch.randn(2, 3, 8, 8))


def test_everything_a_node_took_in_is_among_what_it_covers():
    model = Net(lambda m, x: F.relu(m.norm(m.conv(x) + x))).eval()
    graph = capture(model, (torch.randn(2, 3, 8, 8),), {}).graph
    (node,) = fuse(lower(graph)).nodes
    assert node.covers == {name for call in graph.calls for name in call.results}
