"""Tensors that hold no plain numbers are refused in one sentence, and numbers of any
size are saved without a word of warning.
"""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import tersify
from tersify.tensor.compressed import same_bits


def made(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of these a prototype
        return {
            "sparse": lambda: torch.eye(40).to_sparse(),
            "sparse rows": lambda: torch.eye(40).to_sparse_csr(),
            "blocks": lambda: torch.eye(40).to_sparse_bsr((4, 4)),
            "meta": lambda: torch.empty(40, 40, device="meta"),
            "nested": lambda: torch.nested.nested_tensor(
                [torch.zeros(2), torch.zeros(3)]
            ),
            "jagged": lambda: torch.nested.nested_tensor(
                [torch.zeros(2), torch.zeros(3)], layout=torch.jagged
            ),
            "quantized": lambda: torch.quantize_per_tensor(
                torch.randn(40, 40), 0.1, 0, torch.qint8
            ),
            "lazy": lambda: nn.LazyLinear(4).weight,
        }[kind]()


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("sparse", r"'w' has the layout sparse_coo; give tensor.to_dense\(\)"),
        ("sparse rows", r"'w' has the layout sparse_csr; give tensor.to_dense\(\)"),
        ("blocks", r"'w' has the layout sparse_bsr; give tensor.to_dense\(\)"),
        ("meta", "'w' is on the device meta and has no numbers; load them first"),
        ("nested", "'w' is a nested tensor; give its parts"),
        ("jagged", "'w' is a nested tensor; give its parts"),
        ("quantized", r"'w' has torch's own torch.qint8 with a scale; give tensor.deq"),
        ("lazy", "'w' has no shape yet; run the network once"),
    ],
)
def test_a_tensor_without_plain_numbers_is_refused_in_one_sentence(
    kind, sentence, tmp_path
):
    state = {"dense": torch.randn(8, 8), "w": made(kind)}
    path = tmp_path / "w.terse"
    with pytest.raises(ValueError, match=sentence):
        tersify.save(state, path)
    with pytest.raises(ValueError, match=sentence):
        tersify.pack(state)
    assert not path.exists()


def test_a_network_without_numbers_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="'weight' is on the device meta"):
        tersify.pack(nn.Linear(4, 4, device="meta"))
    with pytest.raises(ValueError, match="'weight' has no shape yet"):
        tersify.pack(nn.LazyLinear(4))


def test_other_dtypes_are_named_with_those_that_a_file_holds(tmp_path):
    for dtype in (torch.complex64, torch.uint16):
        with pytest.raises(ValueError, match=f"'w' has dtype {dtype}; a .terse file"):
            tersify.save({"w": torch.zeros(90, 90, dtype=dtype)}, tmp_path / "w.terse")


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    ("levels", "dtype"),
    [
        ([0.0, 5e-324, -5e-324, 1e-320], torch.float64),
        ([0.0, 1e-45, -1e-45, 1e-44], torch.float32),
        ([0.0, 1e308, -1e308, 1.7e308], torch.float64),
        ([0.0, 1e308, -5e-324, 1.0], torch.float64),
        ([0.0, 3e38, -3e38, 1e-45], torch.float32),
        ([0.0, float("nan"), float("inf"), float("-inf")], torch.float64),
        ([0.0, 6e-8, -6e4, 1.0], torch.float16),
    ],
)
def test_levels_of_any_size_are_saved_without_a_warning(levels, dtype, rows, tmp_path):
    rng = torch.Generator().manual_seed(0)
    table = torch.tensor(levels, dtype=dtype)
    state = {
        f"{i}.weight": table[torch.randint(0, 4, (64, 64), generator=rng)]
        for i in range(3)
    }
    if rows:
        some = torch.linspace(1, 0.5, 64, dtype=dtype)[:, None]
        state = {name: tensor * some for name, tensor in state.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tersify.save(state, tmp_path / "w.terse")
        back = tersify.open(tmp_path / "w.terse").read().state_dict()
    assert all(same_bits(back[name], tensor) for name, tensor in state.items())


def test_masks_leave_zeros_and_scale_the_rest_as_the_network_does():
    layer = nn.Linear(64, 64)
    weight = layer.weight.data
    weight[0, :8] = torch.tensor([torch.inf, torch.nan, -torch.inf, -1, 1, -0.0, 2, 3])
    mask = (torch.rand(64, 64) > 0.5).float() * 0.5
    mask[0, :8] = torch.tensor([0, 0, 0, 0, 0, 0.5, 1, 2])
    prune.custom_from_mask(layer, "weight", mask)
    found = tersify.pack(layer)["weight"]
    found = found if isinstance(found, torch.Tensor) else found.to_dense()
    assert same_bits(found, torch.where(mask == 0, 0.0, layer.weight.data))
    kept = mask != 0
    assert not bool(found[~kept].signbit().any())
