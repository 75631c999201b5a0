"""The price of a bit that a wanted drop of accuracy allows, found on images that
training could have seen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.calibration import Calibration
from tersify.checks import check_range
from tersify.lab.data import Data, Split, normalize
from tersify.lab.trainer.evaluation import evaluate
from tersify.rate_distortion import Squeezer
from tersify.tensor import CompressedModel
from tersify.tensor.model import load_state

LEAST_PRICE, MOST_PRICE = 1e-4, 1.0
CALIBRATION_BATCH = 32
# Softer outputs: of images that a network knows by heart, its own hardly tell a thing.
TEMPERATURE = 2.0


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
    chosen = data.for_choosing()
    picked = torch.randperm(
        len(chosen.train), generator=torch.Generator().manual_seed(0)
    )[:images]
    batches = [
        (normalize(chosen.train.images[some], data), None)
        for some in picked.split(CALIBRATION_BATCH)
    ]
    held = noisy(chosen.test[:held_out], data, noise)
    before = _accuracy(model, data, held)
    squeezer = Squeezer(model.eval(), Calibration(batches, loss=_own_labels()))
    low, high = LEAST_PRICE, MOST_PRICE
    found: Squeezed | None = None
    for _ in range(tries):
        # The geometric mean: prices span four powers of ten.
        price = (low * high) ** 0.5
        packed = squeezer.at(price)
        accuracy = _accuracy(load_state(packed, copy.deepcopy(model)), data, held)
        tell(
            f"price {price:.4f}: {accuracy:.2f} % of the held-out images, {before:.2f} % before"
        )
        # Fine enough: try a higher price for a smaller file. Otherwise go back.
        if accuracy >= before - drop:
            low, found = price, Squeezed(packed, price, accuracy, before)
        else:
            high = price
    if found is None:
        raise ValueError(
            f"no price from {LEAST_PRICE} on keeps the drop of {drop} points on {len(held)} held-out images; "
            "allow a larger drop, or give more images"
        )
    return found


def _own_labels() -> Callable[[Tensor, None], Tensor]:
    """Cross-entropy with labels drawn from the network's own outputs: the squares of its
    gradients are the Fisher information, whatever the true labels are.
    """
    draw = torch.Generator().manual_seed(0)

    def loss(outputs: Tensor, _: None) -> Tensor:
        soft = outputs.float().flatten(0, -2) / TEMPERATURE
        drawn = torch.multinomial(soft.detach().softmax(1).cpu(), 1, generator=draw)
        return F.cross_entropy(soft, drawn[:, 0].to(soft.device))

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
