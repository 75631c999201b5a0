"""Plans of one network: kernels that stand alone go to torch, sizes share weights, and
memory stays bounded.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tersify.runtime import compile
from tersify.runtime import sizes as sizes_module

pytest.importorskip("tersify._runtime")


class Net(nn.Module):
    def __init__(self, forward) -> None:
        super().__init__()
        self.conv, self.linear, self.does = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Linear(8, 8),
            forward,
        )

    def forward(self, x):
        return self.does(self, x)


def places(forward, x=None):
    x = torch.randn(2, 3, 8, 8) if x is None else x
    model = Net(forward).eval()
    fast = compile(model, x, threads=1)
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-5)
    return [(node.kind, node.in_torch) for node in fast.plan.nodes]


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x.cumsum(1).relu().cumsum(2),
        lambda m, x: x.cumsum(1).softmax(-1),
        lambda m, x: F.max_pool2d(x, 2).cumsum(1),
        lambda m, x: F.layer_norm(x.cumsum(1), (8,)) * 2 + 1,
        lambda m, x: torch.cat([x.sin(), x.cos()], 1).flatten(1).sin(),
    ],
)
def test_kernels_that_stand_alone_between_torch_calls_go_back_to_torch(forward):
    assert all(in_torch for _, in_torch in places(forward))


@pytest.mark.usefixtures("kernels_win")
def test_what_touches_a_layer_with_weights_keeps_its_kernel():
    found = places(lambda m, x: m.conv(F.max_pool2d(x, 2)).softmax(-1).cumsum(1).relu())
    assert found[:3] == [("max pool", False), ("conv", False), ("softmax", False)]
    assert all(in_torch for _, in_torch in found[3:])


@pytest.mark.usefixtures("kernels_win")
def test_a_network_of_kernels_only_keeps_them_without_any_weight():
    assert places(lambda m, x: F.max_pool2d(x, 2).relu()) == [
        ("max pool", False),
        ("elementwise", False),
    ]


def test_where_dense_products_are_cheaper_everything_around_them_goes_too(costs):
    costs(
        conv_table=1e6,
        conv_float=1e6,
        rows_table=1e6,
        rows_float=1e6,
        **{f"{call}_dense-lanes": 1e6 for call in ("conv", "rows")},
    )
    found = places(lambda m, x: m.linear(m.conv(x).relu()).softmax(-1))
    assert all(in_torch for _, in_torch in found)


@pytest.mark.usefixtures("kernels_win")
def test_only_so_many_sizes_are_kept_and_all_stay_right(monkeypatch):
    monkeypatch.setattr(sizes_module, "MAX_SIZES", 3)
    layer = nn.Linear(8, 4)
    fast = compile(layer, torch.randn(1, 8), threads=1)
    for n in (1, 2, 3, 4, 5, 1, 2, 1):
        x = torch.randn(n, 8)
        with torch.no_grad():
            assert torch.allclose(fast(x), layer(x), atol=1e-5)
    assert len(fast._sizes.bounds) <= 3
    assert fast.plan.nodes


@pytest.mark.usefixtures("kernels_win")
def test_the_size_used_least_recently_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(sizes_module, "MAX_SIZES", 3)
    captured: list[int] = []
    layer = nn.Linear(8, 4)

    def call(n):
        # strided: no short way, which keeps sizes of its own
        fast(torch.randn(8, n).t())

    fast = compile(layer, torch.randn(2, 8), threads=1)
    call(3)
    call(5)
    layer.register_forward_hook(
        lambda module, given, made: captured.append(len(given[0]))
    )
    call(2)  # used again
    call(7)  # so 3 goes
    call(2)
    call(5)
    assert set(captured) == {7}
    call(3)
    assert set(captured) == {3, 7}
