"""Array files: the same bits back, and Binsparse's own reader opens what Binsparse can
describe.
"""

import contextlib
import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tersify.sparse.collection_error import CollectionError
from tersify.sparse.formats import FORMATS, Matrix
from tersify.sparse.npz import from_npz, to_npz


def example(height=9, width=14, density=0.3, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((height, width)) * (rng.random((height, width)) < density)
    ).astype(np.float32)


@given(
    st.sampled_from([*FORMATS]),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_a_file_gives_the_matrix_back_bit_for_bit(format, height, width, density):
    dense = example(height, width, density) + np.float32(0)
    data = to_npz(Matrix.of(dense, format))
    back = from_npz(data, "here")
    assert back.format == format
    assert back.to_dense().tobytes() == dense.tobytes()
    assert to_npz(back) == data


@pytest.mark.parametrize("format", ["dense", "coo", "csr", "csc", "bsr", "dok"])
def test_binsparse_s_own_reader_opens_the_file(format, tmp_path):
    binsparse = pytest.importorskip("binsparse")
    from binsparse import conversions

    dense = example(8, 16)
    path = tmp_path / "weight.npz"
    matrix = Matrix.of(dense, format)
    path.write_bytes(to_npz(matrix))
    read = binsparse.load_binsparse(path)
    if format in ("coo", "csr", "csc"):
        assert np.array_equal(conversions.to_scipy(read).toarray(), dense)
    elif format == "dense":
        assert np.array_equal(conversions.to_numpy(read), dense)
    elif format == "dok":
        flat = np.zeros(dense.size, np.float32)
        flat[read.indices_0] = read.values
        assert np.array_equal(flat.reshape(dense.shape), dense)
    else:
        block = read.shape[-1]
        inner = read.level.level
        blocks = np.zeros((*read.shape[:2], block, block), np.float32)
        rows = np.repeat(
            np.arange(read.shape[0]), np.diff(inner.pointers_to_next.astype(int))
        )
        blocks[rows, inner.indices[0]] = inner.level.level.values.reshape(
            -1, block, block
        )
        assert np.array_equal(blocks.transpose(0, 2, 1, 3).reshape(dense.shape), dense)


def changed(**arrays):
    """A CSR file with other arrays in it."""
    with np.load(
        io.BytesIO(to_npz(Matrix.of(example()))), allow_pickle=False
    ) as archive:
        members = {name: archive[name] for name in archive.files} | arrays
    buffer = io.BytesIO()
    np.savez(buffer, **members)
    return buffer.getvalue()


def csr():
    return Matrix.of(example()).arrays


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: b"", "no array file"),
        (lambda: to_npz(Matrix.of(example()))[:-40], "no array file"),
        (lambda: changed(binsparse=np.asarray(json.dumps({}))), "no array file"),
        (
            lambda: changed(
                binsparse=np.asarray(
                    json.dumps({"tersify": {"format": "x", "shape": [1, 2]}})
                )
            ),
            "unknown",
        ),
        (
            lambda: changed(
                binsparse=np.asarray(
                    json.dumps({"tersify": {"format": "csr", "shape": [-1, 2]}})
                )
            ),
            "unknown",
        ),
        (
            lambda: changed(indices_1=csr()["columns"] + np.uint8(200)),
            "the limit is 14",
        ),
        (lambda: changed(indices_1=csr()["columns"][:-1]), "unsigned numbers"),
        (
            lambda: changed(indices_1=-csr()["columns"].astype(np.int8)),
            "unsigned numbers",
        ),
        (
            lambda: changed(pointers_to_1=csr()["pointers"][::-1].copy()),
            "pointers must rise",
        ),
        (lambda: changed(values=csr()["values"].astype(np.float16)), "float16"),
        (lambda: changed(values=np.array([None] * 3)), "no array file"),
    ],
)
def test_a_damaged_or_hostile_file_is_refused(data, message):
    with pytest.raises(CollectionError, match=message):
        from_npz(data(), "here")


def test_a_file_that_would_grow_when_read_is_refused():
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, binsparse=np.asarray("{}"), values=np.zeros(10**6, np.float32)
    )
    with pytest.raises(CollectionError, match="is compressed"):
        from_npz(buffer.getvalue(), "here")


@pytest.mark.parametrize("format", [*FORMATS])
def test_arrays_that_do_not_fit_each_other_are_refused(format):
    matrix = Matrix.of(example(), format)
    short = {**matrix.arrays, "values": matrix.arrays["values"][:-1]}
    with pytest.raises(CollectionError, match="here"):
        from_npz(to_npz(Matrix(format, matrix.shape, short)), "here")


@given(st.sampled_from([*FORMATS]), st.randoms(use_true_random=False))
@settings(max_examples=400)
def test_any_damage_gives_a_matrix_or_a_collection_error(format, random):
    """Bytes change inside the members, whose checksums are made right again: only our
    own checks are left.
    """
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(to_npz(Matrix.of(example(), format)))) as whole,
        zipfile.ZipFile(buffer, "w") as damaged,
    ):
        victim = random.choice(whole.namelist())
        for name in whole.namelist():
            data = bytearray(whole.read(name))
            for _ in range(random.randint(1, 4) if name == victim else 0):
                data[random.randrange(len(data))] = random.choice(
                    [0, 1, 255, *b"0123456789[]{},:fui<>"]
                )
            damaged.writestr(name, bytes(data))
    with contextlib.suppress(CollectionError):
        from_npz(buffer.getvalue(), "here").to_dense()
