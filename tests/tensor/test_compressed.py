"""CompressedTensor is checked at birth, gives its dense weight back and knows when it
is the same.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tersify import CompressedTensor
from tersify.tensor import bits_for, pack_bits, unpack_bits

CODES = torch.tensor([[0, 1, 2], [2, 0, 1]], dtype=torch.uint8)
LEVELS = torch.tensor([0.0, 0.5, -2.0])


def test_dense_weight_is_codebook_times_scale():
    scale = torch.tensor([[2.0], [10.0]])
    dense = CompressedTensor(
        shape=(2, 3), codes=CODES, codebook=LEVELS, scale=scale
    ).to_dense()
    assert dense.tolist() == [[0, 1, -4], [-20, 0, 5]]


@pytest.mark.parametrize("axis", [0, 1])
def test_each_slice_of_the_axis_can_have_its_own_levels(axis):
    rows = CODES.shape[axis]
    codebook = LEVELS.repeat(rows, 1) * torch.arange(1, rows + 1)[:, None]
    dense = CompressedTensor(
        shape=(2, 3), codes=CODES, codebook=codebook, axis=axis
    ).to_dense()
    factor = (
        torch.arange(1, rows + 1).reshape(-1, 1)
        if axis == 0
        else torch.arange(1, rows + 1).reshape(1, -1)
    )
    assert torch.equal(dense, LEVELS[CODES.int()] * factor)


def test_pruned_values_go_back_to_their_places():
    mask = torch.tensor([[0, 1, 0], [1, 0, 1]], dtype=torch.uint8)
    dense = CompressedTensor(
        shape=(2, 3), codes=mask, values=torch.tensor([7.0, 8.0, 9.0])
    ).to_dense()
    assert dense.tolist() == [[0, 7, 0], [8, 0, 9]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": CODES.int()}, "must be uint8, got torch.int32"),
        ({"shape": (3, 2)}, r"codes have shape \(2, 3\), the tensor has \(3, 2\)"),
        ({"codebook": None}, "not both and not neither"),
        ({"values": torch.ones(4)}, "not both and not neither"),
        ({"codebook": LEVELS[:2]}, "code 2 is outside the codebook of 2 levels"),
        (
            {"codebook": torch.tensor([1.0, 0.0, -1.0])},
            "zero level exists it must be code 0",
        ),
        ({"codebook": torch.ones(257)}, r"1\.\.256 levels, got 257"),
        ({"codebook": LEVELS.repeat(2, 1)}, "1 dimension"),
        ({"codebook": LEVELS.repeat(3, 1), "axis": 0}, "3 rows for 2 slices of axis 0"),
        ({"codebook": LEVELS.repeat(2, 1), "axis": 5}, r"axis must be 0\.\.1, got 5"),
        ({"format": {"n": 8.0}}, "format holds whole numbers, got 'n': 8.0"),
        ({"scale": torch.ones(4)}, r"scale of shape \(4,\) does not broadcast"),
        ({"scale": torch.ones(5, 2, 3)}, "does not broadcast"),
        ({"codebook": None, "values": torch.ones(4)}, "mask of 0 and 1"),
        (
            {"codes": CODES.clamp(max=1), "codebook": None, "values": torch.ones(3)},
            r"keeps 4 weights.*\(3,\)",
        ),
        (
            {
                "codes": CODES.clamp(max=1),
                "codebook": None,
                "values": torch.ones(4),
                "axis": 0,
            },
            "axis belongs to a codebook",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        CompressedTensor(
            **({"shape": (2, 3), "codes": CODES, "codebook": LEVELS} | change)
        )


def test_equal_looks_at_every_bit():
    def tensor(**change):
        return CompressedTensor(
            **({"shape": (2, 3), "codes": CODES, "codebook": LEVELS} | change)
        )

    assert tensor().equal(tensor())
    assert not tensor().equal(tensor(codes=CODES.flip(0)))
    assert not tensor().equal(tensor(codebook=torch.tensor([-0.0, 0.5, -2.0])))
    assert not tensor().equal(tensor(codebook=LEVELS.double()))
    assert not tensor().equal(tensor(scale=torch.tensor(1.0)))
    assert not tensor().equal(tensor(format={"n": 2}))
    nan = torch.tensor([0.0, float("nan"), 1.0])
    assert tensor(codebook=nan).equal(tensor(codebook=nan.clone()))


@given(st.integers(1, 8), st.lists(st.integers(0, 255), max_size=100))
def test_bits_pack_and_unpack_to_the_same_codes(bits, values):
    codes = torch.tensor([v % (1 << bits) for v in values], dtype=torch.uint8)
    packed = pack_bits(codes, bits)
    assert packed.numel() == (len(values) * bits + 7) // 8
    assert torch.equal(unpack_bits(packed, bits, len(values)), codes)


def test_bits_for_counts_the_bits_of_the_largest_code():
    assert [bits_for(n) for n in (1, 2, 3, 4, 5, 16, 17, 256)] == [
        1,
        1,
        2,
        2,
        3,
        4,
        5,
        8,
    ]


def test_unpacking_too_few_bytes_is_refused():
    with pytest.raises(ValueError, match="9 codes of 4 bits take 5 bytes, got 4"):
        unpack_bits(torch.zeros(4, dtype=torch.uint8), 4, 9)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,)])
def test_a_weight_without_elements_has_rows_of_levels_too(shape):
    tensor = CompressedTensor(
        shape=shape,
        codes=torch.zeros(shape, dtype=torch.uint8),
        codebook=torch.zeros(shape[0], 2),
        axis=0,
    )
    assert tensor.to_dense().shape == shape
