"""The published CIFAR-10 networks score what their authors measured, through our
loaders.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tersify.lab import dataset, network, normalize, topk_accuracy


def accuracy(layers: int, weights: Path, root: Path) -> float:
    data = dataset("cifar10", root=root)
    model = network(f"resnet{layers}").eval()
    model.load_state_dict(
        load_file(weights / f"cifar10_resnet{layers}.safetensors"), strict=True
    )
    with torch.inference_mode():
        logits = torch.cat(
            [model(normalize(batch, data)) for batch in data.test.images.split(250)]
        )
    return topk_accuracy(logits, data.test.labels)[1]


def test_resnet20_scores_its_published_91_73_percent(
    shared: Path, cifar10: Path
) -> None:
    assert accuracy(20, shared / "weights", cifar10) == 91.73


@pytest.mark.slow
def test_resnet56_scores_its_published_93_39_percent(
    shared: Path, cifar10: Path
) -> None:
    assert accuracy(56, shared / "weights", cifar10) == 93.39
