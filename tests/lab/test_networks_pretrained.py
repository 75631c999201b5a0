"""The published CIFAR-10 networks score what their authors measured, through our loaders."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tersify.lab import Data, dataset, network, normalize, topk_accuracy

WEIGHTS = Path(__file__).parents[3] / "shared/data/weights"


@pytest.fixture(scope="module")
def cifar10() -> Data:
    try:
        return dataset("cifar10")
    except ValueError as error:
        pytest.skip(f"CIFAR-10 is not here: {error}")


def accuracy(layers: int, data: Data) -> float:
    path = WEIGHTS / f"cifar10_resnet{layers}.safetensors"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in ../shared/data/weights")
    model = network(f"resnet{layers}").eval()
    model.load_state_dict(load_file(path), strict=True)
    with torch.inference_mode():
        logits = torch.cat([model(normalize(batch, data)) for batch in data.test.images.split(250)])
    return topk_accuracy(logits, data.test.labels)[1]


def test_resnet20_scores_its_published_91_73_percent(cifar10: Data) -> None:
    assert accuracy(20, cifar10) == 91.73


@pytest.mark.slow
def test_resnet56_scores_its_published_93_39_percent(cifar10: Data) -> None:
    assert accuracy(56, cifar10) == 93.39
