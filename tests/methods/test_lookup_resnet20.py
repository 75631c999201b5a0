"""What the tables do to a real network: the pretrained CIFAR-10 ResNet-20 on the 10,000
test images.
"""

from pathlib import Path

import pytest
import torch

import tersify
from tersify import Recipe, Rule
from tersify.lab import dataset, network
from tersify.lab.stored_networks import load_weights
from tersify.lab.trainer import evaluate
from tersify.methods import Lookup


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fit", "at_least"), [("paper", 84.0), ("lloyd", 88.5), ("optimal", 90.0)]
)
def test_four_bits_keep_most_of_the_accuracy(
    fit: str, at_least: float, shared: Path, cifar10: Path
) -> None:
    data = dataset("cifar10", root=cifar10)
    model = load_weights(
        network("resnet20"), shared / "weights" / "cifar10_resnet20.safetensors"
    )
    packed = tersify.compress_(model, Recipe(rules=(Rule(methods=(Lookup(fit=fit),)),)))
    assert len(packed.compressed()) == 20
    accuracy = evaluate(model, data, data.test, device=torch.device("cpu"), amp=False)[
        "accuracy"
    ]
    assert accuracy >= at_least
