"""`load(save(x))` equals x, bit for bit."""

import pytest
import torch
from torch import nn

from tersify.codec import TerseFileError, load, open, save
from tersify.tensor import CompressedModel, CompressedTensor


def ternary(*shape: int) -> CompressedTensor:
    return CompressedTensor(
        shape=shape,
        codes=torch.randint(0, 3, shape, dtype=torch.uint8),
        codebook=torch.tensor([0.0, -1.0, 1.0]),
        scale=torch.rand(shape[0], *[1] * (len(shape) - 1)),
    )


def pruned(*shape: int) -> CompressedTensor:
    mask = (torch.rand(shape) < 0.2).to(torch.uint8)
    return CompressedTensor(
        shape=shape, codes=mask, values=torch.randn(int(mask.sum()))
    )


def test_everything_a_packed_model_holds_survives(tmp_path):
    model = CompressedModel(
        {
            "a.weight": ternary(8, 4, 3, 3),
            "b.weight": pruned(5, 7),
            "c.weight": CompressedTensor(
                shape=(4, 6),
                codes=torch.randint(0, 16, (4, 6), dtype=torch.uint8),
                codebook=torch.rand(6, 16) + 1,
                axis=1,
                format={"n": 4, "m": -2},
            ),
            "bn.bias": torch.tensor([1.0, -0.0, float("nan")]),
            "steps": torch.tensor(7),
            "none": torch.empty(0, 3),
            "flags": torch.tensor([True, False]),
            "half": torch.randn(3).bfloat16(),
        },
        aliases={"head.weight": "a.weight"},
        recipe="[[rule]]\n",
        metadata={"epochs": 3, "note": "ö"},
    )
    size = save(model, tmp_path / "m.terse")
    assert size == (tmp_path / "m.terse").stat().st_size
    file = open(tmp_path / "m.terse")
    assert list(file) == list(model)
    assert (file.aliases, file.recipe, file.metadata) == (
        model.aliases,
        model.recipe,
        model.metadata,
    )
    assert {"tersify", "torch", "machine"} <= set(file.provenance)
    for name, tensor in model.items():
        back = file[name]
        if isinstance(tensor, CompressedTensor):
            assert back.equal(tensor)
        else:
            assert back.dtype == tensor.dtype
            assert back.shape == tensor.shape
            assert (
                back.flatten()
                .view(torch.uint8)
                .equal(tensor.flatten().view(torch.uint8))
            )
    assert file["head.weight"].equal(model["a.weight"])


def test_loading_into_a_module_gives_the_same_dense_weights(tmp_path):
    module = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8))
    state = dict(module.state_dict()) | {"0.weight": ternary(8, 4, 3, 3)}
    save(state, tmp_path / "m.terse")
    loaded = load(tmp_path / "m.terse", into=module)
    assert torch.equal(loaded[0].weight, state["0.weight"].to_dense())


def test_a_file_larger_than_allowed_is_refused(tmp_path):
    save({"w": ternary(64, 64, 3, 3)}, tmp_path / "m.terse")
    with pytest.raises(TerseFileError, match="max_decoded_bytes"):
        open(tmp_path / "m.terse", max_decoded_bytes=1000)["w"]
