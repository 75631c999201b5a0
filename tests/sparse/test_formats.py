"""Every format gives the matrix back bit for bit, and `best` is the smallest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tersify.sparse.formats import FORMATS, Entries, Matrix
from tersify.sparse.matrix_statistics import describe, tile_counts


@st.composite
def matrices(draw):
    shape = draw(st.tuples(st.integers(0, 20), st.integers(0, 20)))
    values = hnp.arrays(
        np.float32,
        shape,
        elements=st.floats(-4, 4, width=32),
        fill=st.just(np.float32(0)),
    )
    dense = draw(values) * draw(hnp.arrays(bool, shape))
    return dense + np.float32(0)  # no −0.0: it counts as zero


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@given(matrices(), st.sampled_from([*FORMATS]), st.sampled_from([*FORMATS]))
def test_every_format_gives_the_matrix_back_bit_for_bit(dense, first, second):
    packed = Matrix.of(dense, first)
    assert same(packed.to_dense(), dense)
    assert same(packed.to(second).to_dense(), dense)
    assert packed.nnz == np.count_nonzero(dense)
    entries = packed.entries()
    order = np.lexsort((entries.columns, entries.rows))
    assert np.array_equal(order, np.arange(len(order)))


@given(matrices())
def test_best_is_the_format_with_the_fewest_bytes(dense):
    sizes = describe(Entries.of(dense))["format_bytes"]
    assert Matrix.of(dense, "best").size_bytes == min(sizes.values())
    # a dense row is chosen only where it pays
    assert sizes["hybrid"] - sizes["csr"] <= dense.shape[0]


def rows_of(*counts, width=64):
    dense = np.zeros((len(counts), width), np.float32)
    for row, count in zip(dense, counts, strict=True):
        row[:count] = 1 + np.arange(count)
    return dense


def test_the_hybrid_keeps_full_rows_dense_and_the_others_sparse():
    packed = Matrix.of(rows_of(64, 2, 60, 0, 1), "hybrid")
    assert packed.arrays["dense_rows"].tolist() == [0, 2]
    assert len(packed.arrays["values"]) == 3


def test_each_format_is_the_best_somewhere():
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.random((32, 32)) < 0.1, np.ones((8, 8))).astype(np.float32)
    chosen = {
        "dense": np.ones((32, 32), np.float32),
        "bitmap": (rng.random((256, 256)) < 0.3).astype(np.float32),
        "csr": (rng.random((16, 250)) < 0.05).astype(np.float32),
        "csc": (rng.random((250, 16)) < 0.05).astype(np.float32),
        "bsr": blocks,
        "hybrid": rows_of(*[64] * 8, *[1] * 64),
    }
    assert {
        name: Matrix.of(dense, "best").format for name, dense in chosen.items()
    } == {n: n for n in chosen}


def test_a_dictionary_of_keys_is_one():
    assert Matrix.of(rows_of(1, 0, 2), "dok").to_dict() == {
        (0, 0): 1.0,
        (2, 0): 1.0,
        (2, 1): 2.0,
    }


def test_indices_take_the_narrowest_type():
    assert Matrix.of(rows_of(3, width=256)).arrays["columns"].dtype == np.uint8
    assert Matrix.of(rows_of(3, width=257)).arrays["columns"].dtype == np.uint16


def test_the_statistics_are_counted_as_said():
    dense = np.zeros((8, 8), np.float32)
    dense[0, :3] = dense[5, 6] = 1
    seen = describe(Entries.of(dense))
    assert seen["nnz"] == 4
    assert seen["density"] == 4 / 64
    assert seen["row_nnz"]["mean"] == 0.5
    assert seen["row_nnz"]["max"] == 3
    assert seen["block_occupancy"] == {"4": 2 / 4, "8": 1.0, "16": 1.0, "32": 1.0}
    assert seen["n_m"] == {"1:4": 15 / 16, "2:4": 15 / 16, "2:8": 7 / 8, "4:8": 1.0}
    assert tile_counts(Entries.of(dense), 4).tolist() == [3, 0, 0, 1]
    assert seen["format_bytes"]["dense"] == 256


def test_an_unknown_format_names_the_known_ones():
    with pytest.raises(
        ValueError,
        match="unknown format 'ellpack'; known: csr, csc, coo, bsr, dok, bitmap, hybrid",
    ):
        Matrix.of(np.eye(3), "ellpack")
    with pytest.raises(ValueError, match="got 3 dimensions"):
        Matrix.of(np.zeros((2, 2, 2)))
