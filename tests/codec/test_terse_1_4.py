"""What version 1.4 of the format added: tensors that hold the numbers of another one in
another shape, or its transpose.
"""

from __future__ import annotations

import json

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tersify
from tersify.codec import writer
from tersify.codec.directory import unpack_directory
from tersify.codec.duplicates import equal_tensors
from tersify.codec.entry_json import entry_from_json, entry_to_json
from tersify.codec.errors import TerseFileError
from tersify.codec.views import seen
from tersify.tensor import CompressedTensor
from tersify.tensor.compressed import same_bits

GENERATOR = torch.Generator().manual_seed(0)
WIDE = torch.randn(96, 160, generator=GENERATOR)
STEPS = WIDE.abs().amax(1, keepdim=True) / 7
WEIGHTS = {
    "dense": WIDE,
    "bf16": WIDE.bfloat16(),
    "float8": WIDE.to(torch.float8_e4m3fn),
    "whole numbers": (WIDE * 100).int(),
    "ternary": torch.where(WIDE.abs() > 0.6, WIDE.sign() * 0.3, 0.0),
    "4 bits a row": (WIDE / STEPS).round() * STEPS,
    "4 bits a column": ((WIDE / STEPS).round() * STEPS).t().contiguous(),
    "pruned": torch.where(WIDE.abs() > 1, WIDE, -0.0),
    "not a number": torch.where(WIDE > 2, torch.nan, WIDE.round()),
}
VIEWS = {
    "flat": lambda t: t.reshape(-1),
    "of a convolution": lambda t: t[:, :, None, None],
    "in blocks": lambda t: t.reshape(len(t), -1, 8),
    "of other rows": lambda t: t.reshape(len(t) // 2, -1),
    "turned": lambda t: t.t(),
    "turned in memory": lambda t: t.t().contiguous(),
}


def dense(tensor):
    return tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_view_costs_a_name_and_comes_back_bit_for_bit(weight, view, tmp_path):
    held = WEIGHTS[weight]
    state = {"a.weight": held, "b.weight": VIEWS[view](held)}
    alone = tersify.save({"a.weight": held}, tmp_path / "alone.terse")
    for names in (list(state), list(state)[::-1]):
        given = {name: state[name] for name in names}
        assert tersify.save(given, tmp_path / "both.terse") <= alone + 60
        file = tersify.open(tmp_path / "both.terse")
        assert file.version == "1.4"
        assert list(file) == names
        read = file.read()
        for name, tensor in given.items():
            assert file.shapes()[name] == tuple(tensor.shape)
            assert same_bits(dense(file[name]), tensor)
            assert same_bits(dense(read[name]), tensor)
            assert dense(read[name]).is_contiguous()
        if not any(isinstance(t, CompressedTensor) for t in read.values()):
            assert read["a.weight"].data_ptr() != read["b.weight"].data_ptr()


def test_a_square_matrix_and_its_transpose_are_not_taken_for_each_other(tmp_path):
    square = torch.randn(70, 70)
    state = {"a": square, "b": square.t(), "c": square.clone(), "d": square.t().clone()}
    tersify.save(state, tmp_path / "w.terse")
    read = tersify.open(tmp_path / "w.terse").read()
    assert all(same_bits(read[name], tensor) for name, tensor in state.items())
    assert {name: same.turned for name, same in equal_tensors(state).items()} == {
        "b": True,
        "c": False,
        "d": True,
    }


def test_a_table_of_numbers_that_almost_agree_is_stored(tmp_path):
    other = WIDE.t().clone()
    other[100, 50] = -other[100, 50]
    assert equal_tensors({"a": WIDE, "b": other, "c": other.reshape(-1)}) != {}
    assert "b" not in equal_tensors({"a": WIDE, "b": other})


def test_files_without_views_are_for_older_readers_as_before(tmp_path, monkeypatch):
    state = {
        "a": WIDE,
        "b": WIDE.clone(),
        "zeros": torch.zeros(64, 64),
        "more": torch.zeros(4096),
    }
    tersify.save(state, tmp_path / "w.terse")
    assert tersify.open(tmp_path / "w.terse").version == "1.3"
    monkeypatch.setattr(writer, "SMALL_ELEMENTS", 0)
    tersify.save(state, tmp_path / "w.terse")
    assert tersify.open(tmp_path / "w.terse").version == "1.1"


class Shared(nn.Module):
    """A convolution that reads the memory of a linear layer, and one its transpose."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 96, bias=False)
        self.conv = nn.Conv2d(64, 96, 1, bias=False)
        self.conv.weight = nn.Parameter(self.linear.weight.data[:, :, None, None])
        self.back = nn.Linear(96, 64, bias=False)
        self.back.weight = nn.Parameter(self.linear.weight.data.t())


def test_a_network_whose_layers_share_memory_is_stored_once_and_loads(tmp_path):
    given = Shared()
    size = tersify.save(tersify.pack(given), tmp_path / "net.terse")
    assert size <= 96 * 64 * 4
    loaded = tersify.load(tmp_path / "net.terse", into=Shared())
    for (name, a), b in zip(
        given.state_dict().items(), loaded.state_dict().values(), strict=True
    ):
        assert same_bits(a, b), name


@pytest.mark.parametrize(
    ("tensor", "same"),
    [
        ([7], "b"),
        ([3, 2], ["b"]),
        ([3, 2], ["b", 0, 1]),
        ([3, 2], ["b", 1]),
        ([3, 2], [["b"], 1, 0]),
        ([4, 2], ["b", 1, 0]),
        ([6], ["b", 1, 0]),
        ([3, 2, 1], ["b", 1, 0]),
        ([3, 2], ["a", 1, 0]),
        ([3, 2], ["c", 1, 0]),
        ([3, 2], []),
    ],
)
def test_a_view_that_does_not_fit_is_refused(tensor, same):
    tensors = [
        {"n": "a", "s": tensor, "e": same},
        {"n": "b", "s": [2, 3], "d": ["U8", 0]},
        {"n": "c", "s": [2, 3], "e": "b"},
    ]
    text = json.dumps({"tensors": tensors, "groups": [["planes", 0]]}).encode()
    with pytest.raises(TerseFileError):
        unpack_directory(zstandard.ZstdCompressor().compress(text))


def test_views_survive_the_directory():
    for same in ("b", ["b", 1, 0]):
        plain = {"n": "a", "s": [3, 2], "e": same}
        assert entry_to_json(entry_from_json(plain, 0)) == plain


def test_views_count_as_what_they_decode_to(tmp_path):
    """A view whose numbers its codes cannot say is dense, and larger than the codes."""
    rows = WEIGHTS["4 bits a row"]
    tersify.save({"a": rows, "b": rows.reshape(-1)}, tmp_path / "w.terse")
    small = 2 * rows.numel() + 4 * len(rows) + 200
    with pytest.raises(TerseFileError, match="'b' decodes to"):
        tersify.open(tmp_path / "w.terse", max_decoded_bytes=small)["b"]
    with pytest.raises(TerseFileError, match="the whole file decodes to"):
        tersify.open(tmp_path / "w.terse", max_decoded_bytes=2 * small).read()
    assert tersify.open(tmp_path / "w.terse", max_decoded_bytes=small)["a"].shape == (
        96,
        160,
    )


@st.composite
def coded(draw):
    """Any packed tensor, and a shape of as many elements."""
    shape = draw(
        st.sampled_from(
            [(4, 6), (6, 4), (1, 24), (24,), (2, 3, 4), (), (0, 5), (4, 3, 2)]
        )
    )
    shapes = {
        24: [(24,), (4, 6), (6, 4), (2, 12), (2, 3, 4), (24, 1, 1), (1, 24)],
        1: [(), (1,), (1, 1)],
        0: [(0,), (5, 0), (0, 2), (2, 0, 3)],
    }
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    other = draw(st.sampled_from(shapes[torch.Size(shape).numel()]))
    codes = torch.randint(0, 2, shape, generator=rng, dtype=torch.uint8)

    def scale():
        sizes = tuple(n if draw(st.booleans()) else 1 for n in shape)
        return torch.rand(sizes[draw(st.integers(0, len(sizes))) :], generator=rng)

    parts = {"values": torch.randn(int(codes.sum()), generator=rng)}
    if draw(st.booleans()):
        axis = draw(st.sampled_from([None, *range(len(shape))]))
        rows = () if axis is None else (shape[axis],)
        parts = {"codebook": torch.randn(*rows, 2, generator=rng), "axis": axis}
    if draw(st.booleans()):
        parts["scale"] = scale()
        if draw(st.booleans()):
            parts["column_scale"] = scale()
    return CompressedTensor(shape=shape, codes=codes, **parts), other


@given(coded())
@settings(max_examples=300, deadline=None)
def test_any_packed_tensor_is_seen_in_any_shape(case):
    tensor, shape = case
    wanted = tensor.to_dense()
    assert same_bits(dense(seen(tensor, shape, turned=False)), wanted.reshape(shape))
    if len(shape) == 2:
        found = dense(seen(tensor, shape, turned=True))
        assert same_bits(found, wanted.reshape(shape[::-1]).t().contiguous())
