"""What version 1.2 of the format added: a second scale, as steps for each row and each
column need it.
"""

from __future__ import annotations

import pytest
import torch

import tersify
from tersify.codec import writer
from tersify.codec.entry_json import entry_from_json
from tersify.codec.errors import TerseFileError
from tersify.tensor import CompressedTensor


def two_scales(rows: int = 30, columns: int = 20) -> CompressedTensor:
    torch.manual_seed(0)
    return CompressedTensor(
        shape=(rows, columns),
        codes=torch.randint(0, 5, (rows, columns), dtype=torch.uint8),
        codebook=torch.tensor([0.0, 1.0, 2.0, -2.0, -1.0]),
        scale=torch.rand(rows, 1),
        column_scale=torch.rand(1, columns),
    )


def test_both_scales_come_back_and_multiply(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SMALL_ELEMENTS", 0)
    given = two_scales()
    tersify.save({"w": given}, tmp_path / "w.terse")
    file = tersify.open(tmp_path / "w.terse")
    assert file.version == "1.2"
    assert file["w"].equal(given)
    assert given.codebook is not None
    whole = given.codebook[given.codes.long()]
    assert torch.equal(file["w"].to_dense(), whole * given.scale * given.column_scale)


def test_tensors_that_differ_in_the_second_scale_are_different():
    given = two_scales()
    other = CompressedTensor(
        shape=given.shape,
        codes=given.codes,
        codebook=given.codebook,
        scale=given.scale,
        column_scale=given.column_scale * 2,
    )
    assert not given.equal(other)


def test_tensors_that_differ_in_the_second_scale_are_both_stored(tmp_path):
    given = two_scales()
    other = CompressedTensor(
        shape=given.shape,
        codes=given.codes,
        codebook=given.codebook,
        scale=given.scale,
        column_scale=given.column_scale * 2,
    )
    tersify.save({"a": given, "b": other}, tmp_path / "w.terse")
    assert tersify.open(tmp_path / "w.terse")["b"].equal(other)


@pytest.mark.parametrize(
    "scales",
    [
        [["F32", 0, 30, 1], ["F32", 0, 7, 20]],
        [["F32", 0, 30, 1], ["F32", 9, 1, 20]],
        [["F32", 0, 30, 1]],
        [["F32", 0, 30, 1], "F32"],
        [["F32", 0, 30, 1], ["F32", 0, 1, 20], ["F32", 0, 1, 20]],
        [],
    ],
)
def test_scales_that_cannot_be_are_refused(scales):
    item = {"n": "w", "s": [30, 20], "c": 0, "b": ["F32", 1, 5], "m": scales}
    with pytest.raises(TerseFileError):
        entry_from_json(item, 2)


def test_a_second_scale_needs_a_first():
    with pytest.raises(ValueError, match="give a single one as scale"):
        CompressedTensor(
            shape=(2, 2),
            codes=torch.zeros(2, 2, dtype=torch.uint8),
            codebook=torch.zeros(1),
            column_scale=torch.ones(1, 2),
        )


def test_a_second_scale_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="does not broadcast"):
        CompressedTensor(
            shape=(2, 2),
            codes=torch.zeros(2, 2, dtype=torch.uint8),
            codebook=torch.zeros(1),
            scale=torch.ones(2, 1),
            column_scale=torch.ones(3),
        )


def test_a_module_loads_weights_of_two_scales(tmp_path):
    given = two_scales()
    tersify.save({"weight": given, "bias": torch.zeros(30)}, tmp_path / "w.terse")
    net = tersify.load(tmp_path / "w.terse", into=torch.nn.Linear(20, 30))
    assert torch.equal(net.weight, given.to_dense())
    x = torch.randn(3, 20)
    compiled = tersify.compile(net.eval(), x)
    assert torch.allclose(compiled(x), net(x), atol=1e-4)
