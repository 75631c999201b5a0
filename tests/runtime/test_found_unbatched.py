"""Inputs without a batch: torch's layers take them, and so do compiled ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from against_torch import check, thinned_
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "adaptive_avg_2d": (lambda: nn.AdaptiveAvgPool2d(1), (4, 6, 8)),
    "adaptive_avg_2d_3x2": (lambda: nn.AdaptiveAvgPool2d((3, 2)), (4, 6, 8)),
    "adaptive_avg_1d": (lambda: nn.AdaptiveAvgPool1d(2), (4, 8)),
    "adaptive_max_2d": (lambda: nn.AdaptiveMaxPool2d(2), (4, 6, 8)),
    "adaptive_max_1d": (lambda: nn.AdaptiveMaxPool1d(3), (4, 8)),
    "avg_1d": (lambda: nn.AvgPool1d(2), (4, 8)),
    "avg_2d": (lambda: nn.AvgPool2d(2, ceil_mode=True), (4, 7, 5)),
    "max_1d": (lambda: nn.MaxPool1d(3, 2, 1), (4, 9)),
    "max_2d": (lambda: nn.MaxPool2d(2, ceil_mode=True), (4, 7, 5)),
    "conv_2d": (lambda: nn.Conv2d(3, 5, 3, padding=1), (3, 16, 16)),
    "conv_2d_stride": (lambda: nn.Conv2d(3, 5, 3, 2), (3, 9, 7)),
    "conv_2d_depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (4, 8, 8)),
    "conv_1d": (lambda: nn.Conv1d(3, 5, 3), (3, 16)),
    "conv_transposed_1d": (lambda: nn.ConvTranspose1d(3, 5, 3, 2), (3, 8)),
    "conv_transposed_2d": (lambda: nn.ConvTranspose2d(3, 5, 3, 2), (3, 6, 5)),
    "conv_3d": (lambda: nn.Conv3d(2, 3, 3), (2, 5, 6, 4)),
    "instance_norm_1d": (lambda: nn.InstanceNorm1d(4), (4, 9)),
    "instance_norm_2d": (lambda: nn.InstanceNorm2d(4, affine=True), (4, 6, 6)),
    "linear_on_a_vector": (lambda: nn.Linear(8, 5), (8,)),
    "layer_norm_on_a_vector": (lambda: nn.LayerNorm(8), (8,)),
    "softmax_on_a_vector": (lambda: nn.Softmax(0), (8,)),
    "lstm": (lambda: nn.LSTM(5, 6), (7, 5)),
    "gru": (lambda: nn.GRU(5, 6, num_layers=2), (7, 5)),
    "relu_of_a_number": (lambda: nn.ReLU(), ()),
}


def drawn(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_takes_one_item_without_a_batch(layer):
    build, shape = LAYERS[layer]
    model = build().eval()
    fast = compile(model, drawn(shape))
    for _ in range(3):
        assert check(fast, model, drawn(shape)) <= 2e-5


@pytest.mark.parametrize(
    "layer", [name for name, (_, shape) in LAYERS.items() if len(shape) in (2, 3)]
)
def test_a_layer_compiled_without_a_batch_is_right_with_one_and_the_reverse(layer):
    build, shape = LAYERS[layer]
    model = build().eval()
    for example, other in (((), (2,)), ((2,), ())):
        fast = compile(model, drawn((*example, *shape)))
        x = drawn((*other, *shape))
        # another rank may be refused, not answered wrongly
        with contextlib.suppress(ValueError):
            assert check(fast, model, x) <= 2e-5


@pytest.mark.parametrize("zeros", [0.0, 0.8])
def test_a_network_takes_one_image_without_a_batch(zeros):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 3),
        nn.AdaptiveAvgPool2d(2),
    ).eval()
    if zeros:
        thinned_(model, zeros, ternary=True)
    fast = compile(model, torch.randn(3, 16, 16))
    for _ in range(3):
        assert check(fast, model, torch.randn(3, 16, 16)) <= 2e-5


def test_the_same_image_without_a_batch_gives_the_same_answer_each_time():
    fast = compile(nn.Conv2d(3, 5, 3), torch.randn(3, 16, 16))
    x = torch.randn(3, 16, 16)
    first = fast(x).clone()
    assert all(torch.equal(fast(x), first) for _ in range(5))


@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_of_nothing_or_of_one_is_right(batch):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 5)
    ).eval()
    fast = compile(model, torch.randn(2, 3, 6, 6))
    assert check(fast, model, torch.randn(batch, 3, 6, 6)) <= 2e-5
