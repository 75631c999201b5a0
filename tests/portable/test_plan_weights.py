"""Weights that the kernels take otherwise than the file holds them, and weights that a
forward computes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plan_networks import packed, ternary_
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import tersify
from tersify import codec
from tersify.runtime.portable import Replay, read_program
from tersify.runtime.portable.replay import weight_array


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(192, 160))
        self.gains = nn.Parameter(torch.rand(192, 160))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.gains)


class Centred(nn.Module):
    """A convolution whose filters have no mean, as in networks with standardized
    weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 48, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True))


def replayed(path: Path, x: Tensor) -> Tensor:
    file = codec.open(path)
    return Replay(read_program(file), file).run([x])[0]


RAISING: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "whole strides": (lambda: nn.ConvTranspose2d(64, 128, 2, 2), (64, 5, 6)),
    "few weights": (lambda: nn.ConvTranspose2d(64, 32, 2, 2), (64, 5, 6)),
    "taps left over": (
        lambda: nn.ConvTranspose2d(48, 64, (3, 5), (2, 3), 1, (1, 2)),
        (48, 5, 6),
    ),
    "no stride": (lambda: nn.ConvTranspose2d(32, 64, 3), (32, 5, 6)),
    "a signal": (lambda: nn.ConvTranspose1d(64, 96, 4, 2, 1), (64, 9)),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", RAISING)
def test_a_transposed_convolution_reads_its_weight_from_the_file(
    name: str, compressed: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    make, shape = RAISING[name]
    model = make().eval()
    if compressed:
        model.weight.data = model.weight.data.sign() * 0.07
    tensors, x = packed(model), torch.randn(2, *shape)
    path = tmp_path / "net.terse"
    size = tersify.save(tensors, path, network=model, example=x, plan="fp32")
    alone = tersify.save(tensors, tmp_path / "alone.terse", network=model, example=x)
    assert size < alone + 1000
    more = torch.randn(3, *shape)
    assert torch.allclose(replayed(path, more), model(more), atol=1e-5)


DERIVED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "weight norm": (lambda: weight_norm(nn.Linear(256, 256)), (256,)),
    "gains": (Scaled, (160,)),
    "centred": (Centred, (48, 7, 7)),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_weight_that_a_forward_computes_goes_into_the_plan(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    make, shape = DERIVED[name]
    model, path = make().eval(), tmp_path / "net.terse"
    tersify.save(model, path, example=torch.randn(2, *shape))
    more = torch.randn(3, *shape)
    wanted = model(more).detach()
    assert torch.allclose(replayed(path, more), wanted, atol=1e-5 * wanted.abs().max())


def test_gains_of_a_layer_of_signs_leave_its_signs_in_the_file(tmp_path: Path) -> None:
    class Gained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.signs = nn.Linear(256, 256)
            self.gains = nn.Parameter(torch.rand(256, 1) + 0.5)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.signs.weight * self.gains, self.signs.bias)

    torch.manual_seed(0)
    model, path = ternary_(Gained()), tmp_path / "net.terse"
    tersify.save(model, path, example=torch.randn(2, 256))
    sources = {weight[1][0] for weight in read_program(codec.open(path)).weights}
    assert sources <= {"codes", "signs"}


@pytest.mark.parametrize(
    "turned", [[2], [2, 3], [0, 2], [2, -2], [1, 2], [2**31, 2], [2, 2, 2], [None, 2]]
)
def test_strides_that_fit_no_weight_are_refused(turned: list[Any]) -> None:
    tensors = packed(RAISING["whole strides"][0]())
    shape = [512, 64, 1, 1]
    assert weight_array(["tensor", "weight", [2, 2], shape], tensors, []).size
    with pytest.raises(ValueError, match="weight of"):
        weight_array(["tensor", "weight", turned, shape], tensors, [])
