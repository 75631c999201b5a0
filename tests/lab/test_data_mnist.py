import gzip
from pathlib import Path

import numpy as np
import pytest

from tersify.lab import dataset

COUNTS = {"train": 5, "t10k": 3}


def idx(array: np.ndarray) -> bytes:
    shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


def write(
    folder: Path, joint: str = "-", zipped: bool = False
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    made = {}
    for part, count in COUNTS.items():
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        for what, array in (("images", images), ("labels", labels)):
            name = f"{part}-{what}{joint}idx{array.ndim}-ubyte"
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / name).write_bytes(idx(array))
        made[part] = images, labels
    return made


@pytest.mark.parametrize("folder", [".", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("joint", ["-", "."])
@pytest.mark.parametrize("zipped", [True, False])
def test_the_four_files_are_found_plain_or_zipped(
    tmp_path: Path, folder: str, joint: str, zipped: bool
) -> None:
    made = write(tmp_path / folder, joint, zipped)
    data = dataset("mnist", root=tmp_path)
    assert data.shape == (1, 28, 28)
    for part, split in (("train", data.train), ("t10k", data.test)):
        assert np.array_equal(split.images[:, 0].numpy(), made[part][0])
        assert np.array_equal(split.labels.numpy(), made[part][1])


def test_an_empty_root_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="mnist needs the folder mnist or MNIST/raw or MNIST under"
    ):
        dataset("mnist", root=tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "mnist")
    (tmp_path / "mnist/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte' is missing"):
        dataset("mnist", root=tmp_path)


DAMAGES = {
    "empty": lambda content: b"",
    "another magic": lambda content: b"\x00\x00\x0d" + content[3:],
    "cut header": lambda content: content[:9],
    "cut short": lambda content: content[:-1],
    "too long": lambda content: content + b"x",
    "no images": lambda content: content[:4] + bytes(4) + content[8:],
    "a huge promise": lambda content: content[:4] + b"\xff" * 12 + content[16:],
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str, zipped: bool) -> None:
    write(tmp_path / "mnist", zipped=zipped)
    path = tmp_path / f"mnist/train-images-idx3-ubyte{'.gz' if zipped else ''}"
    content = gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()
    broken = DAMAGES[damage](content)
    path.write_bytes(gzip.compress(broken) if zipped else broken)
    with pytest.raises(
        ValueError, match=r"train-images.* is not a whole idx file: .*; fetch it again"
    ):
        dataset("mnist", root=tmp_path)


def test_a_zip_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "mnist", zipped=True)
    path = tmp_path / "mnist/train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is not a whole idx file"):
        dataset("mnist", root=tmp_path)


def test_images_and_labels_must_be_equally_many(tmp_path: Path) -> None:
    write(tmp_path / "mnist")
    (tmp_path / "mnist/train-labels-idx1-ubyte").write_bytes(
        idx(np.zeros(4, dtype=np.uint8))
    )
    with pytest.raises(
        ValueError, match="have 5 images and 4 labels, which must be equal"
    ):
        dataset("mnist", root=tmp_path)


def test_a_label_above_nine_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "mnist")
    (tmp_path / "mnist/train-labels-idx1-ubyte").write_bytes(
        idx(np.full(5, 10, dtype=np.uint8))
    )
    with pytest.raises(
        ValueError, match=r"training labels of 'mnist' must be 0\.\.9, got 10"
    ):
        dataset("mnist", root=tmp_path)
