"""What version 1.3 of the format added: small files in one section, levels that are
whole numbers, and arrays byte by byte.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path

import pytest
import torch
import zstandard

import tersify
from tersify.codec import TerseFileError, container, writer
from tersify.codec.arrays import decode_arrays, encode_arrays
from tersify.codec.entries import whole_levels
from tersify.codec.entry_json import entry_from_json, entry_to_json
from tersify.codec.small import DICTIONARY, SMALL, joined, spans_of
from tersify.tensor import CompressedTensor
from tersify.tensor.compressed import same_bits

ROOT = Path(__file__).parents[2]


def small_network() -> dict[str, CompressedTensor | torch.Tensor]:
    torch.manual_seed(0)
    return {
        "conv.weight": CompressedTensor(
            shape=(8, 4, 3, 3),
            codes=torch.randint(0, 256, (8, 4, 3, 3)).to(torch.uint8),
            codebook=whole_levels(256).float(),
            scale=torch.rand(8, 1, 1, 1),
        ),
        "conv.bias": torch.randn(8),
        "steps": torch.tensor(3),
        "empty": torch.empty(0, 4),
    }


def checked(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "little") + body


def small_file(section: bytes, beside: dict[str, bytes] | None = None) -> bytes:
    sections = {SMALL: section} | (beside or {})
    return container.header_of(sections, "1.3") + b"".join(sections.values())


def test_a_small_file_has_one_section_and_gives_everything_back(tmp_path):
    given = small_network()
    size = tersify.save(given, tmp_path / "m.terse")
    file = tersify.open(tmp_path / "m.terse")
    assert (file.version, file.section_names()) == ("1.3", ["small"])
    assert size == file.file_bytes == (tmp_path / "m.terse").stat().st_size
    for name, tensor in given.items():
        if isinstance(tensor, CompressedTensor):
            assert file[name].equal(tensor)
            assert same_bits(file[name].codebook, tensor.codebook)
        else:
            assert same_bits(file[name], tensor)


def test_the_small_form_is_smaller_than_the_other_one(tmp_path, monkeypatch):
    small = tersify.save(small_network(), tmp_path / "a.terse")
    monkeypatch.setattr(writer, "SMALL_ELEMENTS", 0)
    assert small < tersify.save(small_network(), tmp_path / "b.terse") - 500


def test_a_small_network_takes_no_more_than_zstd_of_its_parts_with_their_names(
    tmp_path,
):
    given = small_network()
    parts = {
        f"{name}.{part}": getattr(tensor, part)
        for name, tensor in given.items()
        if isinstance(tensor, CompressedTensor)
        for part in ("codes", "codebook", "scale")
    } | {name: t for name, t in given.items() if isinstance(t, torch.Tensor)}
    told = {n: {"dtype": str(t.dtype), "shape": [*t.shape]} for n, t in parts.items()}
    zstd = zstandard.ZstdCompressor(level=19).compress
    peer = len(zstd(json.dumps(told).encode())) + len(
        zstd(b"".join(t.contiguous().numpy().tobytes() for t in parts.values()))
    )
    assert tersify.save(given, tmp_path / "m.terse") < peer


def test_metadata_that_makes_a_small_network_large_goes_into_a_plain_file(tmp_path):
    noise = torch.randint(
        0, 256, (1 << 20,), generator=torch.Generator().manual_seed(0)
    )
    packed = tersify.CompressedModel(
        {"w": torch.randn(5)}, metadata={"noise": bytes(noise.tolist()).hex()}
    )
    tersify.save(packed, tmp_path / "m.terse")
    file = tersify.open(tmp_path / "m.terse")
    assert "directory" in file.section_names()
    assert file.metadata == packed.metadata


@pytest.mark.parametrize("count", [1, 2, 3, 16, 255, 256])
def test_whole_levels_count_up_and_come_back_from_below(count):
    levels = whole_levels(count).tolist()
    assert levels[: count // 2 + 1] == list(range(count // 2 + 1))[:count]
    assert levels[count // 2 + 1 :] == list(range(count // 2 + 1 - count, 0))


def test_levels_that_are_not_quite_whole_numbers_are_stored(tmp_path):
    for change in (0.5, -0.0):
        codebook = whole_levels(4).float()
        codebook[0] = change
        tensor = CompressedTensor(
            shape=(40,),
            codes=torch.randint(0, 4, (40,)).to(torch.uint8),
            codebook=codebook,
        )
        tersify.save({"w": tensor}, tmp_path / "m.terse")
        assert same_bits(tersify.open(tmp_path / "m.terse")["w"].codebook, codebook)


@pytest.mark.parametrize(
    ("book", "axis"),
    [
        (["I8", -1, 3], None),
        (["F8_E4M3", -1, 3], None),
        (["F16>F32", -1, 3], None),
        (["F32", -1, 257], None),
        (["F32", -1, 0], None),
        (["F32", -1], None),
        (["F32", -2, 3], None),
        (["F32", -1, 3], 0),
    ],
)
def test_whole_levels_of_another_kind_are_refused(book, axis):
    plain = {"n": "w", "s": [4, 4], "c": 0, "b": book}
    with pytest.raises(TerseFileError, match="'w'"):
        entry_from_json(plain if axis is None else plain | {"a": axis}, 1)


def test_only_a_codebook_may_lie_in_no_group():
    for part in ({"d": ["F32", -1]}, {"c": 0, "b": ["F32", 0, 2], "m": ["F32", -1, 1]}):
        with pytest.raises(TerseFileError, match="'w'"):
            entry_from_json({"n": "w", "s": [4]} | part, 1)


def test_whole_levels_survive_the_directory():
    plain = {"n": "w", "s": [4], "b": ["BF16", -1, 5], "c": 0}
    assert entry_to_json(entry_from_json(plain, 1)) == plain


@pytest.mark.parametrize(
    "section",
    [
        b"",
        b"\x00",
        b"\x01",
        b"\x01\x05abcd",
        b"\x01\x03abcd",
        b"\xff\xff\xff\xff",
        b"\x02\x80\x80\x80\x01",
        b"\xff\xff\x7f" + b"\x00" * 100,
    ],
)
def test_lengths_that_do_not_fit_a_small_file_are_refused(section, tmp_path):
    for each in (section, checked(section)):
        (tmp_path / "m.terse").write_bytes(small_file(each))
        with pytest.raises(TerseFileError, match="'small'"):
            tersify.open(tmp_path / "m.terse")


def test_groups_of_a_plain_file_need_their_checksums(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SMALL_ELEMENTS", 0)
    made = writer.encoded({"w": torch.randn(5)})
    plain = json.loads(zstandard.decompress(made.sections["directory"]))
    plain["groups"] = [[codec] for codec, _ in plain["groups"]]
    changed = {"directory": zstandard.compress(json.dumps(plain).encode())}
    container.write_sections(tmp_path / "m.terse", made.sections | changed, "1.3")
    with pytest.raises(TerseFileError, match="group 0 has no checksum"):
        tersify.open(tmp_path / "m.terse")


def test_a_second_directory_beside_a_small_file_is_refused(tmp_path):
    tersify.save(small_network(), tmp_path / "m.terse")
    good = container.Sections(tmp_path / "m.terse").read(SMALL)
    (tmp_path / "m.terse").write_bytes(small_file(good, {"directory": b"x"}))
    with pytest.raises(TerseFileError, match="no 'directory' beside it"):
        tersify.open(tmp_path / "m.terse")


def test_a_section_named_like_a_group_does_not_replace_one_of_a_small_file(tmp_path):
    tersify.save(small_network(), tmp_path / "m.terse")
    good = container.Sections(tmp_path / "m.terse").read(SMALL)
    (tmp_path / "m.terse").write_bytes(small_file(good, {"g0": b"x"}))
    with pytest.raises(TerseFileError, match="'g0'"):
        tersify.open(tmp_path / "m.terse")


def test_a_small_section_that_claims_megabytes_is_refused_unread(tmp_path):
    (tmp_path / "m.terse").write_bytes(small_file(bytes((1 << 20) + 1)))
    with pytest.raises(TerseFileError, match="at most"):
        tersify.open(tmp_path / "m.terse")


def test_a_truncated_or_changed_small_file_is_never_read_wrongly(tmp_path):
    given = small_network()
    path = tmp_path / "m.terse"
    tersify.save(given, path)
    good = path.read_bytes()
    for at in range(8, len(good), 7):
        for changed in (good[:at], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
            path.write_bytes(changed)
            try:
                read = tersify.open(path).read()
            except TerseFileError:
                continue
            for name, tensor in read.items():
                found = given.get(name)
                assert (
                    found is None
                    or (
                        tensor.equal(found)
                        if isinstance(tensor, CompressedTensor)
                        else same_bits(tensor, found)
                    )
                    or tensor.shape != found.shape
                )


def test_parts_and_their_lengths_survive_each_other():
    parts = {"directory": b"a" * 300, "g0": b"", "g1": b"b" * 20000}
    section = joined(parts)
    spans = spans_of(section)
    assert {name: section[a:b] for name, (a, b) in spans.items()} == parts


@pytest.mark.parametrize(("width", "dtype"), [(2, "F16"), (4, "F32"), (8, "I64")])
def test_arrays_byte_by_byte_are_given_back(width, dtype):
    data = torch.arange(60 * width, dtype=torch.int64).sin().view(torch.uint8).numpy()
    data = data[: 60 * width].copy()
    arrays = [("dbias", 20), ("dweight", 40)]
    codec, coded = encode_arrays(
        data * 0 + 7, arrays, width, is_float=dtype[0] == "F", columns=True
    )
    assert codec == "columns"
    back = decode_arrays(codec, coded, arrays, width, is_float=dtype[0] == "F")
    assert back.tobytes() == (data * 0 + 7).tobytes()
    turned = zstandard.ZstdCompressor().compress(
        data.reshape(-1, width).T.copy().tobytes()
    )
    back = decode_arrays("columns", turned, arrays, width, is_float=True)
    assert back.tobytes() == data.tobytes()
    with pytest.raises(TerseFileError):
        decode_arrays("columns", turned[:-3], arrays, width, is_float=True)


def test_the_text_that_directories_refer_to_is_the_same_everywhere():
    header = (ROOT / "csrc" / "lib" / "directory_text.hpp").read_text()
    told = "".join(re.findall(r'R"__\((.*?)\)__"', header, re.DOTALL))
    assert told.encode() == DICTIONARY
    page = (ROOT / "docs" / "reference" / "format.md").read_text()
    block = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert block is not None
    assert block[1].replace("\n", "").encode() == DICTIONARY


def test_a_small_file_with_a_plan_keeps_its_section(tmp_path):
    tersify.save(small_network(), tmp_path / "m.terse")
    file = container.Sections(tmp_path / "m.terse")
    writer.add_plan(file, tmp_path / "p.terse", b"plan")
    made = container.Sections(tmp_path / "p.terse")
    assert (made.names(), made.version) == (["small", "plan"], "1.3")
    assert made.read("directory") == file.read("directory")
    (length,) = struct.unpack("<Q", (tmp_path / "p.terse").read_bytes()[:8])
    assert length < 200
