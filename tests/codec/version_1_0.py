"""The network in files/version-1.0.terse, which the first version of the format wrote."""

import torch

from tersify.tensor import CompressedModel, CompressedTensor


def _codes(*shape: int, levels: int) -> torch.Tensor:
    return (
        (torch.arange(torch.Size(shape).numel()).pow(2) % 97 % levels)
        .to(torch.uint8)
        .reshape(shape)
    )


def model() -> CompressedModel:
    ternary = CompressedTensor(
        shape=(12, 8, 3, 3),
        codes=_codes(12, 8, 3, 3, levels=3),
        codebook=torch.tensor([0.0, -0.5, 0.5]),
    )
    table = CompressedTensor(
        shape=(20, 30),
        codes=_codes(20, 30, levels=16),
        codebook=torch.linspace(1, 2, 20 * 16).reshape(20, 16),
        axis=0,
    )
    mask = _codes(40, 25, levels=2)
    pruned = CompressedTensor(
        shape=(40, 25),
        codes=mask,
        values=torch.arange(int(mask.sum())).float().sin(),
        scale=torch.ones(40, 1) * 3,
    )
    dense = {
        "bf16": torch.arange(2000).float().cos().bfloat16(),
        "steps": torch.arange(9),
        "on": torch.tensor([True, False]),
        "double": torch.arange(700).double().sqrt(),
    }
    return CompressedModel(
        {"a.weight": ternary, "b.weight": table, "c.weight": pruned, **dense},
        aliases={"d.weight": "a.weight"},
    )
