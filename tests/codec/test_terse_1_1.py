"""What version 1.1 of the format added: flat streams read quickly, split codes, zeros,
pieces, tensors stored once.
"""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from version_1_0 import model as old_model

import tersify
from tersify.codec import (
    TerseFileError,
    container,
    inspect,
    native,
    reference,
    writer,
)
from tersify.codec.arrays import decode_arrays, encode_arrays
from tersify.codec.codes import Meaning
from tersify.codec.directory import unpack_directory
from tersify.codec.entry_json import entry_from_json
from tersify.codec.layout import Box, boxes_of_arrays, flat_box
from tersify.codec.planes import decode_planes, encode_planes
from tersify.codec.split import MAX_DEPTH, decode_group, encode_group
from tersify.codec.views import Same
from tersify.tensor.compressed import same_bits

compiled = native.extension()
needs_coders = pytest.mark.skipif(
    compiled is None, reason="tersify._codec is not built"
)
PATHS = compiled.paths() if compiled else []


def test_a_file_of_the_first_version_is_read_as_before():
    file = tersify.open(Path(__file__).parent / "files/version-1.0.terse")
    assert file.version == "1.0"
    expected = old_model()
    assert list(file) == list(expected)
    assert file.aliases == expected.aliases
    for name, tensor in expected.items():
        found = file[name]
        if isinstance(tensor, tersify.CompressedTensor):
            assert found.equal(tensor)
        else:  # the last bit of a random number differs from CPU to CPU
            torch.testing.assert_close(found, tensor, rtol=1e-6, atol=0, equal_nan=True)


def test_a_file_that_needs_nothing_new_says_that_the_first_version_reads_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(writer, "SMALL_ELEMENTS", 0)
    torch.manual_seed(0)
    codes = torch.randint(0, 3, (60, 70), dtype=torch.uint8)
    tensor = tersify.CompressedTensor(
        shape=(60, 70), codes=codes, codebook=torch.tensor([0.0, -1.0, 1.0])
    )
    tersify.save({"a": tensor, "b": torch.randn(300)}, tmp_path / "old.terse")
    assert tersify.open(tmp_path / "old.terse").version == "1.0"


@st.composite
def flat_groups(draw):
    levels = draw(st.sampled_from([4, 5, 16, 128, 256]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(
        st.lists(st.sampled_from([1, 31, 32, 33, 700, 5000]), min_size=1, max_size=4)
    )
    boxes = [draw(st.sampled_from([flat_box(n), Box(n, 3, 1, 1)])) for n in sizes]
    codes = [
        (rng.normal(size=box.elements) * draw(st.sampled_from([0.1, 1, 30]))).round()
        % levels
        for box in boxes
    ]
    return (
        np.concatenate(codes).astype(np.uint8),
        boxes,
        levels,
        draw(st.integers(-1, 5)),
    )


@needs_coders
@given(flat_groups())
@settings(max_examples=100, deadline=None)
def test_flat_streams_are_read_alike_by_every_decoder(group):
    codes, boxes, levels, lanes = group
    sizes = np.array(boxes, np.int64)
    order = np.arange(levels, dtype=np.uint8)
    data = compiled.encode_codes(
        codes, sizes, levels, np.zeros((len(boxes), levels), np.uint8), order, lanes
    )
    assert reference.decode_rans(data, boxes, levels) == codes.tobytes()
    for path in PATHS:
        out = np.full_like(codes, 255)
        compiled.decode_codes(data, sizes, levels, out, path)
        assert (out == codes).all()


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 63, 64, 1001])
def test_codes_are_packed_alike_by_both_coders(bits, count, monkeypatch):
    codes = np.random.default_rng(count).integers(0, 1 << bits, count).astype(np.uint8)
    packed = native.pack_codes(codes, bits)
    out = np.empty(count, np.uint8)
    native.unpack_codes(packed, 1 << bits, out)
    assert (out == codes).all()
    monkeypatch.setattr(native, "extension", lambda: None)
    assert native.pack_codes(codes, bits) == packed


ELEMENTS = {1: [0, 1, 9], 2: [1, 5, 4099], 4: [1, 33, 9000], 8: [1, 70]}


@pytest.mark.parametrize("is_float", [True, False])
@pytest.mark.parametrize("width", ELEMENTS)
def test_planes_are_made_and_joined_alike_by_both_coders(width, is_float, monkeypatch):
    rng = np.random.default_rng(width)
    arrays = [(f"d{i}", n) for i, n in enumerate(ELEMENTS[width]) if n]
    boxes = boxes_of_arrays(arrays)
    data = (
        (rng.normal(size=sum(n for _, n in arrays) * width) * 20)
        .astype(np.int64)
        .astype(np.uint8)
    )
    made = encode_planes(data, boxes, width, is_float=is_float)
    assert (decode_planes(made, boxes, width, is_float=is_float) == data).all()
    monkeypatch.setattr(native, "extension", lambda: None)
    assert (decode_planes(made, boxes, width, is_float=is_float) == data).all()
    plain = encode_planes(data, boxes, width, is_float=is_float)
    monkeypatch.undo()
    assert (decode_planes(plain, boxes, width, is_float=is_float) == data).all()


def skewed(levels, size=200_000):
    """One code takes nearly everything, and many are too rare for a table."""
    rng = np.random.default_rng(0)
    fractions = 0.5 ** np.minimum(np.arange(levels), 14)
    return rng.choice(levels, p=fractions / fractions.sum(), size=size).astype(np.uint8)


def meaning_of(levels, boxes):
    return Meaning(
        activity=np.zeros((len(boxes), levels), np.uint8),
        order=np.arange(levels, dtype=np.uint8),
    )


@needs_coders
def test_rare_codes_are_set_aside_and_come_back(monkeypatch):
    codes, boxes = skewed(200), [Box(400, 300, 1, 1), Box(800, 100, 1, 1)]
    codec, data = encode_group(codes, boxes, 200, meaning_of(200, boxes))
    assert codec == "split"
    out = np.empty_like(codes)
    decode_group(codec, data, boxes, 200, out)
    assert (out == codes).all()


@needs_coders
def test_split_codes_that_lie_are_refused():
    codes, boxes = skewed(200, 5000), [flat_box(5000)]
    rare = np.arange(200) > 3
    from tersify.codec.split import _encode_split

    good = _encode_split(codes, boxes, 200, meaning_of(200, boxes), rare, MAX_DEPTH)
    out = np.empty_like(codes)
    decode_group("split", good, boxes, 200, out)
    assert (out == codes).all()
    nested = struct.pack("<BI", 3, len(good)) + good
    for broken in (
        b"",
        good[:10],
        good + b"\0",
        b"\xff" * 25 + good[25:],
        b"\0" * 25 + good[25:],
        good[:25] + b"\7" + good[26:],
        good[:25] + nested * 2,
    ):
        with pytest.raises(TerseFileError):
            decode_group("split", broken, boxes, 200, np.empty_like(codes))
    with pytest.raises(TerseFileError, match="more than"):
        decode_group("split", good, boxes, 200, np.empty_like(codes), depth=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["both signs", "all", "some arrays"])
def test_zeros_of_both_signs_are_set_aside_and_come_back(dtype, kind):
    torch.manual_seed(0)
    values = torch.randn(6000)
    values = torch.where(values.abs() > 1, values, values.sign() * 0.0)
    if kind == "all":
        values = values.sign() * 0.0
    if kind == "some arrays":
        values[:2000] = 0.0
    data = values.to(dtype).view(torch.uint8).numpy()
    arrays = [("da", 2000), ("da", 300), ("db", 3700)]
    codec, coded = encode_arrays(data, arrays, dtype.itemsize, is_float=True)
    assert codec == "zeros"
    assert (
        decode_arrays(codec, coded, arrays, dtype.itemsize, is_float=True) == data
    ).all()
    for broken in (b"", coded[:4], coded[:-1], coded + b"\0", b"\7" + coded[1:]):
        with pytest.raises(TerseFileError):
            decode_arrays(codec, broken, arrays, dtype.itemsize, is_float=True)


def test_large_arrays_are_coded_in_pieces_whose_statistics_may_differ(tmp_path):
    torch.manual_seed(0)
    weight = torch.cat([torch.randn(1 << 17) * 1e-3, torch.randn(1 << 17) * 10])
    size = tersify.save({"w": weight}, tmp_path / "w.terse")
    assert inspect(tmp_path / "w.terse")["groups"][0]["coder"] == "pieces"
    assert same_bits(tersify.open(tmp_path / "w.terse")["w"], weight)
    shuffled = weight[torch.randperm(len(weight))]
    if compiled is not None:
        assert (
            size
            < tersify.save({"w": shuffled}, tmp_path / "s.terse") - len(weight) // 16
        )


def test_repeated_elements_are_left_to_zstd(tmp_path):
    torch.manual_seed(0)
    row = torch.randn(1000)
    assert tersify.save({"w": row.repeat(600)}, tmp_path / "w.terse") < 8000
    assert same_bits(tersify.open(tmp_path / "w.terse")["w"], row.repeat(600))


def test_equal_tensors_are_stored_once_and_are_separate_when_read(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(writer, "SMALL_ELEMENTS", 0)
    torch.manual_seed(0)
    weight, codes = torch.randn(100, 100), (torch.rand(90, 90) > 0.5).float() * 0.3
    state = {
        "a": weight,
        "b": weight.clone(),
        "c": codes,
        "d": codes.clone(),
        "e": weight + 1,
    }
    once = tersify.save({name: state[name] for name in "ace"}, tmp_path / "once.terse")
    assert tersify.save(state, tmp_path / "w.terse") < once + 100
    file = tersify.open(tmp_path / "w.terse")
    assert (file.version, list(file), file.aliases) == ("1.1", list(state), {})
    read = file.read()
    for name, tensor in state.items():
        for found in (file[name], read[name]):
            dense = (
                found.to_dense()
                if isinstance(found, tersify.CompressedTensor)
                else found
            )
            assert same_bits(dense, tensor)
    assert read["a"].data_ptr() != read["b"].data_ptr()
    rows = {
        row["name"]: row["bytes"] for row in inspect(tmp_path / "w.terse")["tensors"]
    }
    assert rows["b"] == 0 < rows["a"]


@pytest.mark.parametrize(
    "tensors",
    [
        [{"n": "a", "s": [2], "e": "a"}],
        [{"n": "a", "s": [2], "e": "b"}],
        [{"n": "a", "s": [2], "e": 3}],
        [{"n": "a", "s": [2], "e": "b", "c": 0}, {"n": "b", "s": [2], "d": ["U8", 0]}],
        [{"n": "a", "s": [3], "e": "b"}, {"n": "b", "s": [2], "d": ["U8", 0]}],
        [
            {"n": "a", "s": [2], "e": "b"},
            {"n": "b", "s": [2], "e": "c"},
            {"n": "c", "s": [2], "d": ["U8", 0]},
        ],
    ],
)
def test_a_tensor_that_equals_nothing_is_refused(tensors):
    import zstandard

    text = json.dumps({"tensors": tensors, "groups": [["planes", 0]]}).encode()
    with pytest.raises(TerseFileError):
        unpack_directory(zstandard.ZstdCompressor().compress(text))


def test_an_equal_tensor_has_no_parts():
    entry = entry_from_json({"n": "a", "s": [2, 3], "e": "b"}, 0)
    assert (entry.same, entry.parts()) == (Same(name="b"), {})


def test_the_first_version_is_not_claimed_by_newer_codecs(tmp_path):
    tersify.save({"w": torch.randn(1 << 18)}, tmp_path / "w.terse")
    assert container.Sections(tmp_path / "w.terse").version == "1.1"
