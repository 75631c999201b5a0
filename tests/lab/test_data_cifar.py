import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tersify.lab import dataset
from tersify.lab.data.cifar import CIFAR10, CIFAR100, PIXELS, Layout
from tersify.lab.data.types import IMAGENET_MEAN, IMAGENET_STD

TINY = 3


@pytest.fixture(autouse=True)
def _tiny_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of three images, so that no test writes 180 MB."""
    for layout in (CIFAR10, CIFAR100):
        for name in ("train_batch", "test_batch"):
            monkeypatch.setitem(layout.__dict__, name, TINY)


def contents(layout: Layout) -> dict[str, tuple[np.ndarray, list[int]]]:
    rng = np.random.default_rng(0)
    return {
        file: (
            rng.integers(0, 256, (TINY, PIXELS), dtype=np.uint8),
            rng.integers(0, layout.classes, TINY).tolist(),
        )
        for file in (*layout.train, *layout.test)
    }


def write_binary(root: Path, layout: Layout) -> Path:
    folder = root / layout.binary
    folder.mkdir()
    for file, (pixels, labels) in contents(layout).items():
        coarse = np.full((TINY, layout.label_bytes - 1), 7, dtype=np.uint8)
        fine = np.array(labels, dtype=np.uint8)[:, None]
        (folder / f"{file}.bin").write_bytes(
            np.hstack([coarse, fine, pixels]).tobytes()
        )
    return folder


def write_python(
    root: Path, layout: Layout, order: str = "C", protocol: int = 2
) -> Path:
    folder = root / layout.python
    folder.mkdir()
    for file, (pixels, labels) in contents(layout).items():
        batch = {
            b"data": np.asarray(pixels, order=order),
            layout.label_key.encode(): labels,
            b"batch_label": b"x",
        }
        (folder / file).write_bytes(pickle.dumps(batch, protocol=protocol))
    return folder


LAYOUTS = pytest.mark.parametrize(
    ("name", "layout"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)]
)


@LAYOUTS
def test_both_layouts_hold_the_same_images(
    tmp_path: Path, name: str, layout: Layout
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "p").mkdir()
    write_binary(tmp_path / "b", layout)
    write_python(tmp_path / "p", layout)
    binary, python = (
        dataset(name, root=tmp_path / "b"),
        dataset(name, root=tmp_path / "p"),
    )
    assert binary.classes == layout.classes
    assert binary.shape == (3, 32, 32)
    for part in ("train", "test"):
        one, other = getattr(binary, part), getattr(python, part)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    pixels, labels = contents(layout)[layout.train[0]]
    assert np.array_equal(binary.train.images[:TINY].flatten(1).numpy(), pixels)
    assert binary.train.labels[:TINY].tolist() == labels


def test_a_column_major_array_is_read_as_it_was_meant(tmp_path: Path) -> None:
    write_python(tmp_path, CIFAR10, order="F")
    pixels, _ = contents(CIFAR10)["test_batch"]
    assert np.array_equal(
        dataset("cifar10", root=tmp_path).test.images.flatten(1).numpy(), pixels
    )


def test_a_batch_as_python_2_wrote_it_is_read(tmp_path: Path) -> None:
    folder = write_python(tmp_path, CIFAR10)
    pixels, labels = contents(CIFAR10)["test_batch"]
    text = pixels.tobytes()
    old = b"".join(
        [
            b"\x80\x02}(U\x04data",
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
            b"(K\x01K\x03M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89T" + len(text).to_bytes(4, "little") + text + b"tb",
            b"U\x06labels]("
            + b"".join(b"K" + bytes([label]) for label in labels)
            + b"eu.",
        ]
    )
    (folder / "test_batch").write_bytes(old)
    test = dataset("cifar10", root=tmp_path).test
    assert np.array_equal(test.images.flatten(1).numpy(), pixels)
    assert test.labels.tolist() == labels


def test_the_environment_names_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_binary(tmp_path, CIFAR10)
    monkeypatch.setenv("TERSIFY_DATA", str(tmp_path))
    assert len(dataset("cifar10").train) == 5 * TINY


@LAYOUTS
@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_root_says_what_belongs_there(
    tmp_path: Path, name: str, layout: Layout, exists: bool
) -> None:
    root = tmp_path if exists else tmp_path / "nowhere"
    with pytest.raises(
        ValueError,
        match=f"{name} needs the folder {layout.binary} or {layout.python} under",
    ) as error:
        dataset(name, root=root)
    assert ("has no such folder" if exists else "does not exist") in str(error.value)
    assert "TERSIFY_DATA" in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (write_binary(tmp_path, CIFAR10) / "data_batch_3.bin").unlink()
    with pytest.raises(
        ValueError, match=r"data_batch_3.bin' is missing; fetch the data set again"
    ):
        dataset("cifar10", root=tmp_path)


@pytest.mark.parametrize("change", [-1, -3073, 1])
def test_a_binary_file_of_another_size_is_refused(tmp_path: Path, change: int) -> None:
    path = write_binary(tmp_path, CIFAR10) / "test_batch.bin"
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"x")
    expected = rf"test_batch.bin' has {TINY * 3073 + change} bytes and must have {TINY * 3073}: .*fetch it again"
    with pytest.raises(ValueError, match=expected):
        dataset("cifar10", root=tmp_path)


def test_a_label_out_of_range_is_refused_in_both_layouts(tmp_path: Path) -> None:
    path = write_binary(tmp_path, CIFAR10) / "data_batch_2.bin"
    content = bytearray(path.read_bytes())
    content[3073] = 10
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"label 10 of record 1 in .*data_batch_2.bin' must be 0..9"
    ):
        dataset("cifar10", root=tmp_path)
    path = write_python(tmp_path, CIFAR100) / "test"
    batch = pickle.loads(path.read_bytes())
    batch[b"fine_labels"][2] = -1
    path.write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(
        ValueError, match=r"label -1 of record 2 in .*test' must be 0..99"
    ):
        dataset("cifar100", root=tmp_path)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return sys.exit, ("the pickle ran",)


PIXEL_TABLE = np.zeros((TINY, PIXELS), dtype=np.uint8)
NOT_BATCHES = {
    "code": Bomb(),
    "no dict": [1, 2],
    "no data": {b"labels": [0] * TINY},
    "no labels": {b"data": PIXEL_TABLE},
    "data of another shape": {b"data": PIXEL_TABLE[:2], b"labels": [0] * TINY},
    "data of another kind": {
        b"data": PIXEL_TABLE.astype(np.int8),
        b"labels": [0] * TINY,
    },
    "data that is no array": {b"data": b"abc", b"labels": [0] * TINY},
    "objects for data": {
        b"data": np.array([None], dtype=object),
        b"labels": [0] * TINY,
    },
    "too few labels": {b"data": PIXEL_TABLE, b"labels": [0]},
    "labels of text": {b"data": PIXEL_TABLE, b"labels": ["a"] * TINY},
}


@pytest.mark.parametrize("what", NOT_BATCHES)
def test_a_pickle_that_is_no_batch_is_refused_and_never_run(
    tmp_path: Path, what: str
) -> None:
    path = write_python(tmp_path, CIFAR10) / "data_batch_1"
    path.write_bytes(pickle.dumps(NOT_BATCHES[what], protocol=2))
    with pytest.raises(
        ValueError,
        match=r"data_batch_1' is not an official CIFAR batch: .*; fetch it again",
    ):
        dataset("cifar10", root=tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 100, 5000, -1])
def test_a_pickle_that_was_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    path = write_python(tmp_path, CIFAR10) / "data_batch_1"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="is not an official CIFAR batch"):
        dataset("cifar10", root=tmp_path)


def test_a_pickle_far_too_large_is_not_even_read(tmp_path: Path) -> None:
    path = write_python(tmp_path, CIFAR10) / "data_batch_1"
    path.write_bytes(path.read_bytes() + bytes(10_000))
    with pytest.raises(ValueError, match="bytes and must have at most"):
        dataset("cifar10", root=tmp_path)


def test_statistics_are_those_the_public_networks_were_trained_with(
    tmp_path: Path,
) -> None:
    write_binary(tmp_path, CIFAR10)
    data = dataset("cifar10", root=tmp_path)
    assert (data.mean, data.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert (data.augmentation.crop_padding, data.augmentation.flip) == (4, True)
