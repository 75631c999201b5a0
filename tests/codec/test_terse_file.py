"""The container: a safetensors file, written whole or not at all, that says what it is."""

import gc
import json
import os
import struct
import warnings

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from tersify.codec import (
    TerseFileError,
    container,
    inspect,
    load,
    native,
    open,
    save,
    writer,
)
from tersify.codec.codes import decode_codes
from tersify.codec.directory import unpack_directory
from tersify.codec.entry_json import entry_from_json
from tersify.codec.layout import (
    BLOCK_ELEMENTS,
    Box,
    blocks_of,
    box_of,
    count_blocks,
    flat_box,
)
from tersify.tensor import CompressedModel, CompressedTensor


def ternary(*shape: int, zeros: float = 0.8) -> CompressedTensor:
    codes = torch.randint(1, 3, shape) * (torch.rand(shape) > zeros)
    return CompressedTensor(
        shape=shape,
        codes=codes.to(torch.uint8),
        codebook=torch.tensor([0.0, -1.0, 1.0]),
    )


@pytest.fixture
def model() -> CompressedModel:
    torch.manual_seed(0)
    return CompressedModel(
        {"a.weight": ternary(32, 16, 3, 3), "a.bias": torch.randn(32)},
        metadata={"k": [1, 2]},
    )


def test_the_safetensors_library_opens_the_file(model, tmp_path, monkeypatch):
    save(model, tmp_path / "small.terse")
    monkeypatch.setattr(writer, "SMALL_ELEMENTS", 0)
    save(model, tmp_path / "m.terse")
    with safe_open(tmp_path / "m.terse", "pt") as file:
        assert {"directory", "g0", "g1"} == set(file.keys())
        assert file.metadata() == {"terse": "1.0"}
    with safe_open(tmp_path / "small.terse", "pt") as file:
        assert (set(file.keys()), file.metadata()) == ({"small"}, {"terse": "1.3"})


def test_the_same_model_gives_the_same_bytes_but_for_the_time(model, tmp_path):
    save(model, tmp_path / "a.terse")
    save(model, tmp_path / "b.terse")
    groups = [container.Sections(tmp_path / name) for name in ("a.terse", "b.terse")]
    assert groups[0].read("g0") + groups[0].read("g1") == groups[1].read("g0") + groups[
        1
    ].read("g1")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    model, tmp_path, monkeypatch
):
    save(model, tmp_path / "m.terse")
    before = (tmp_path / "m.terse").read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save(model, tmp_path / "m.terse")
    assert (tmp_path / "m.terse").read_bytes() == before
    assert os.listdir(tmp_path) == ["m.terse"]


def test_an_unknown_optional_key_is_ignored(model, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SMALL_ELEMENTS", 0)
    save(model, tmp_path / "m.terse")
    packed = container.Sections(tmp_path / "m.terse").read("directory")
    plain = json.loads(zstandard.decompress(packed))
    plain["tensors"][0]["later"] = plain["later"] = {"a": 1}
    plain["groups"][0].append("more")
    assert unpack_directory(
        zstandard.compress(json.dumps(plain).encode())
    ) == unpack_directory(packed)


def test_one_tensor_is_read_without_decoding_the_others(tmp_path, monkeypatch):
    save({"a": ternary(8, 8), "b": torch.randn(5)}, tmp_path / "m.terse")
    file = open(tmp_path / "m.terse")
    decoded = []
    decode = file._decode
    monkeypatch.setattr(
        file, "_decode", lambda group: decoded.append(group) or decode(group)
    )
    assert file["b"].shape == (5,)
    assert decoded == [1]


def test_a_tensor_larger_than_a_block_is_cut_and_comes_back(tmp_path):
    big = ternary(2100, 2003, zeros=0.97)
    floats = torch.randn(BLOCK_ELEMENTS // 64).repeat(65)
    save({"w": big, "f": floats, "small": ternary(3, 3)}, tmp_path / "m.terse")
    file = open(tmp_path / "m.terse")
    assert len(file.directory.groups) == 2 + 2 + 1 + 1
    assert file["w"].equal(big)
    assert file["f"].equal(floats)
    assert file.read(threads=2)["w"].equal(big)


@given(st.lists(st.integers(0, 4000), max_size=4).map(tuple))
def test_blocks_cover_a_box_and_stay_small(shape):
    box = box_of(shape)
    blocks = blocks_of(box) if count_blocks(box) < 5000 else []
    if blocks:
        assert sum(block.elements for block in blocks) == box.elements
        assert len(blocks) == count_blocks(box)
        assert max(block.elements for block in blocks) <= BLOCK_ELEMENTS


def test_a_filter_larger_than_a_block_is_cut_by_channels():
    assert (
        blocks_of(Box(2, BLOCK_ELEMENTS + 1, 1, 1))
        == [Box(1, BLOCK_ELEMENTS, 1, 1), Box(1, 1, 1, 1)] * 2
    )


def test_without_the_extension_files_are_read_by_the_reference_with_one_warning(
    model, tmp_path, monkeypatch
):
    save(model, tmp_path / "m.terse")
    native.extension.cache_clear()
    monkeypatch.setattr(native.importlib, "import_module", _no_module)
    try:
        with pytest.warns(RuntimeWarning, match="not built") as caught:
            read = open(tmp_path / "m.terse").read()
        assert len(caught) == 1
        assert read["a.weight"].equal(model["a.weight"])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            save(model, tmp_path / "again.terse")
            assert open(tmp_path / "again.terse")["a.weight"].equal(model["a.weight"])
    finally:
        native.extension.cache_clear()


def _no_module(name):
    raise ImportError(name)


def test_half_precision_on_request_comes_back_as_rounded_floats(tmp_path):
    values = torch.randn(1000)
    exact = save({"v": values}, tmp_path / "exact.terse")
    halved = save({"v": values}, tmp_path / "half.terse", floats="fp16")
    assert halved < 0.65 * exact
    assert open(tmp_path / "half.terse")["v"].equal(values.half().float())
    with pytest.raises(ValueError, match="range of fp16"):
        save({"v": torch.tensor([1e6])}, tmp_path / "half.terse", floats="fp16")


def test_inspect_shares_out_every_byte_of_the_file(model, tmp_path):
    size = save(model, tmp_path / "m.terse")
    found = inspect(tmp_path / "m.terse")
    assert found["file_bytes"] == size
    assert (
        found["overhead_bytes"] + sum(row["bytes"] for row in found["tensors"]) == size
    )
    weight, bias = found["tensors"]
    assert (weight["kind"], weight["levels"], weight["coder"]) == (
        "quantized",
        3,
        "rans",
    )
    assert 75 < weight["sparsity"] < 85
    assert (bias["kind"], bias["coder"]) == ("dense", "columns")
    assert found["metadata"] == {"k": [1, 2]}
    json.dumps(found)


def test_metadata_that_json_cannot_hold_is_refused(tmp_path):
    for metadata in ({"x": float("nan")}, {"x": object()}, {"x": (1, 2)}):
        with pytest.raises(ValueError, match="metadata"):
            save(
                CompressedModel({"v": torch.ones(1)}, metadata=metadata),
                tmp_path / "m.terse",
            )


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_mapping_of_tensors_comes_back_bit_for_bit(tmp_path_factory, data):
    seed = data.draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for index in range(data.draw(st.integers(0, 4))):
        shape = tuple(data.draw(st.lists(st.integers(0, 7), max_size=4)))
        levels = data.draw(st.sampled_from([0, 1, 2, 3, 7, 16, 200]))
        dtype = data.draw(
            st.sampled_from(
                [torch.float32, torch.float16, torch.bfloat16, torch.float64]
            )
        )
        if levels:
            codes = torch.randint(
                0, levels, shape, generator=generator, dtype=torch.uint8
            )
            codebook = (torch.rand(levels, generator=generator) + 1).to(dtype)
            tensors[f"t{index}.weight"] = CompressedTensor(
                shape=shape, codes=codes, codebook=codebook
            )
        elif data.draw(st.booleans()):
            mask = torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8)
            values = torch.randn(int(mask.sum()), generator=generator).to(dtype)
            tensors[f"t{index}.weight"] = CompressedTensor(
                shape=shape, codes=mask, values=values
            )
        else:
            tensors[f"t{index}.bias"] = torch.randn(shape, generator=generator).to(
                dtype
            )
    path = tmp_path_factory.mktemp("any") / "m.terse"
    save(tensors, path)
    read = open(path).read()
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        if isinstance(tensor, CompressedTensor):
            assert read[name].equal(tensor)
        else:
            assert torch.equal(read[name], tensor)
            assert read[name].dtype == tensor.dtype


def test_an_open_file_can_be_saved_again(model, tmp_path):
    save(model, tmp_path / "a.terse")
    save(open(tmp_path / "a.terse"), tmp_path / "b.terse")
    first, second = (open(tmp_path / name) for name in ("a.terse", "b.terse"))
    assert first.directory.groups == second.directory.groups
    assert first.metadata == second.metadata
    assert "a.bias" in second
    assert "b.bias" not in second


def test_a_module_in_place_of_its_weights_and_a_class_in_place_of_a_module_are_refused(
    tmp_path,
):
    with pytest.raises(
        ValueError, match=r"got a Linear; a plain module is saved by its state_dict\(\)"
    ):
        save(torch.nn.Linear(2, 3), tmp_path / "x.terse")
    save(torch.nn.Linear(2, 3).state_dict(), tmp_path / "x.terse")
    with pytest.raises(
        ValueError, match="into must be a network, got the class Linear; give a fresh"
    ):
        load(tmp_path / "x.terse", into=torch.nn.Linear)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        open(tmp_path / "none.terse")


def test_a_safetensors_file_that_is_not_terse_says_so(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.ones(3)}, tmp_path / "m.safetensors")
    with pytest.raises(TerseFileError, match=r"not a \.terse file"):
        open(tmp_path / "m.safetensors")


def test_packed_codes_end_in_zero_bits():
    out = np.zeros(3, np.uint8)
    decode_codes("packed", bytes([0b00_10_01_00]), [flat_box(3)], 3, out)
    assert out.tolist() == [0, 1, 2]
    with pytest.raises(TerseFileError, match="not filled up with zero bits"):
        decode_codes("packed", bytes([0b01_10_01_00]), [flat_box(3)], 3, out)


@pytest.mark.parametrize("key", list("cbvmaf"))
def test_a_dense_tensor_with_a_key_of_a_compressed_one_is_refused(key):
    entry_from_json({"n": "w", "s": [2], "d": ["F32", 0], "later": 1}, 1)
    with pytest.raises(
        TerseFileError, match="is dense and has keys of a compressed tensor"
    ):
        entry_from_json({"n": "w", "s": [2], "d": ["F32", 0], key: 0}, 1)


def test_a_file_of_halves_gives_back_the_types_it_was_given(tmp_path):
    state = {
        "a": torch.tensor([1.0, 2.5]),
        "b": torch.tensor([1.0]).double(),
        "c": torch.tensor([2.0]).half(),
    }
    save(state, tmp_path / "m.terse", floats="fp16")
    found = open(tmp_path / "m.terse")
    assert {name: (t.dtype, t.tolist()) for name, t in found.items()} == {
        name: (t.dtype, t.tolist()) for name, t in state.items()
    }


def test_a_gap_between_two_sections_is_refused(tmp_path):
    header = {
        "__metadata__": {"terse": "1.0"},
        "directory": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "g0": {"dtype": "U8", "shape": [4], "data_offsets": [5, 9]},
    }
    text = json.dumps(header).encode()
    (tmp_path / "m.terse").write_bytes(
        struct.pack("<Q", len(text)) + text + b"abc??defg"
    )
    with pytest.raises(
        TerseFileError, match="'g0' begins at 5, the one before it ends at 3"
    ):
        container.Sections(tmp_path / "m.terse")


@pytest.mark.parametrize("whole", [True, False])
def test_no_descriptor_stays_open(model, whole, tmp_path, monkeypatch):
    save(model, tmp_path / "m.terse")
    if not whole:
        (tmp_path / "m.terse").write_bytes((tmp_path / "m.terse").read_bytes()[:-1])
    opened = []
    monkeypatch.setattr(
        os, "open", lambda *args, real=os.open: opened.append(real(*args)) or opened[-1]
    )
    if whole:
        open(tmp_path / "m.terse").read()
    else:
        with pytest.raises(TerseFileError):
            open(tmp_path / "m.terse")
    gc.collect()
    assert opened
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
