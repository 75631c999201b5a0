"""The price of a bit that a wanted drop of accuracy allows, found on images that
training could have seen.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tersify.calibration import Calibration
from tersify.checks import check_range
from tersify.lab.data import Data, Split, normalize
from tersify.lab.trainer.evaluation import evaluate
from tersify.rate_distortion import Squeezer
from tersify.tensor import CompressedModel
from tersify.tensor.model import load_state

FIRST_PRICE = 1e-3  # takes most networks to about three bits a weight
STRIDE = 4.0  # from price to price, until one keeps the drop and one does not
CALIBRATION_BATCH = 32
SOFTNESS = 2.0  # of the softmax, in standard deviations of the outputs


@dataclass(frozen=True)
class Squeezed:
    """A network with the price that was found, and its accuracy on the held-out images,
    before and after.
    """

    packed: CompressedModel
    price: float
    accuracy: float
    accuracy_before: float


def squeeze(
    model: nn.Module,
    data: Data,
    *,
    drop: float,
    images: int = 512,
    held_out: int = 2000,
    noise: float = 0.0,
    tries: int = 7,
    tell: Callable[[str], None] = lambda text: None,
) -> Squeezed:
    """The network in as few bytes as a drop of `drop` points allows, without training.

    Sensitivities and batch norms come from `images` training images, the price from
    `held_out` others; the test images are not looked at. `noise`, in units of the
    images' spread, is added to those held out: a network that was trained on them knows
    them by heart, and with noise it is as unsure as on images it never saw.
    """
    check_range("drop", drop, low=0.0, high=100.0)
    check_range("noise", noise, low=0.0, high=10.0)
    held = noisy(data.for_choosing().test[:held_out], data, noise)
    before = _accuracy(model, data, held)
    if 100 / len(held) > drop:
        tell(
            f"one of {len(held)} held-out images is {100 / len(held):.2g} points, more than the drop of {drop:g}: "
            "the price will be a guess"
        )
    squeezer = squeezer_of(model, data, images)
    low, high = 0.0, math.inf
    price = FIRST_PRICE
    found: Squeezed | None = None
    for _ in range(tries):
        packed = squeezer.at(price)
        accuracy = _accuracy(load_state(packed, copy.deepcopy(model)), data, held)
        tell(
            f"price {price:.2g}: {accuracy:.2f} % of the held-out images, {before:.2f} % before"
        )
        # Fine enough: try a higher price for a smaller file. Otherwise go back.
        if accuracy >= before - drop:
            low, found = price, Squeezed(packed, price, accuracy, before)
        else:
            high = price
        price = _between(low, high)
    if found is None:
        raise ValueError(
            f"no price down to {high:.2g} keeps the drop of {drop} points on {len(held)} held-out images; "
            "allow a larger drop, or give more images"
        )
    return found


def _between(low: float, high: float) -> float:
    if high == math.inf:
        return low * STRIDE
    return (low * high) ** 0.5 if low else high / STRIDE


def squeezer_of(model: nn.Module, data: Data, images: int) -> Squeezer:
    """With what so many training images say of the network's weights."""
    train = data.for_choosing().train
    picked = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    batches = [
        (normalize(train.images[some], data), None)
        for some in picked[:images].split(CALIBRATION_BATCH)
    ]
    return Squeezer(model.eval(), Calibration(batches, loss=_softened()))


def _softened() -> Callable[[Tensor, None], Tensor]:
    """The outputs of each sample, summed with random factors whose covariance is the
    Fisher information of their softmax: the expected squares of its gradients tell how
    much a weight changes what the network says.

    The softmax is a soft one. Of images that a network knows by heart, its own says
    next to nothing.
    """
    draw = torch.Generator().manual_seed(0)

    def loss(outputs: Tensor, _: None) -> Tensor:
        said = outputs.detach().float()
        spread = said.std(-1, correction=0).mean().clamp(min=1e-30)
        likely = (said / (SOFTNESS * spread)).softmax(-1)
        signs = torch.randint(0, 2, likely.shape, generator=draw).to(likely) * 2 - 1
        drawn = signs * likely.sqrt()
        factors = drawn - likely * drawn.sum(-1, keepdim=True)
        return (outputs * factors.to(outputs.dtype)).sum() / len(outputs)

    return loss


def noisy(split: Split, data: Data, noise: float) -> Split:
    if noise == 0.0:
        return split
    if split.is_text:
        raise ValueError(f"texts take no noise, got noise = {noise}; leave it out")
    images = split.images
    unit = images.float() / 255.0 if images.dtype == torch.uint8 else images
    spread = torch.tensor(data.std).view(1, -1, *[1] * (images.ndim - 2))
    drawn = torch.randn(unit.shape, generator=torch.Generator().manual_seed(0))
    return Split(unit + noise * spread * drawn, split.labels)


def _accuracy(model: nn.Module, data: Data, split: Split) -> float:
    return evaluate(model, data, split, device=torch.device("cpu"), amp=False)[
        "accuracy"
    ]
