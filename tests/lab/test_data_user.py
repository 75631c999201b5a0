import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tersify.lab import dataset, normalize

Image = pytest.importorskip("PIL.Image")


def photo(
    path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (6, 4)
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def write_folder(root: Path, test: str = "test") -> Path:
    photo(root / "train/cat/a.png", (255, 0, 0))
    photo(root / "train/cat/deeper/b.PNG", (250, 0, 0))
    photo(root / "train/dog/c.bmp", (0, 255, 0))
    (root / "train/dog/notes.txt").write_text("not an image")
    (root / "train/.cache").mkdir()
    photo(root / test / "dog/d.png", (0, 250, 7))
    return root


@pytest.mark.parametrize("test", ["test", "val"])
def test_folders_are_classes_in_the_order_of_their_names(
    tmp_path: Path, test: str
) -> None:
    data = dataset(str(write_folder(tmp_path / "pets", test)))
    assert (data.name, data.class_names, data.classes) == ("pets", ("cat", "dog"), 2)
    assert data.shape == (3, 4, 6)
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.test.labels.tolist() == [1]
    assert data.test.images[0, :, 0, 0].tolist() == [0, 250, 7]


def test_a_size_behind_the_path_scales_every_image_to_a_square(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    photo(folder / "train/dog/large.png", (1, 2, 3), (50, 40))
    with pytest.raises(
        ValueError, match=r"large.png' is 50×40 and the images before it 6×4.*PATH@64"
    ):
        dataset(str(folder))
    assert dataset(f"{folder}@8").shape == (3, 8, 8)
    with pytest.raises(ValueError, match="at least 1 pixel, got 0"):
        dataset(f"{folder}@0")


def test_grey_and_transparent_images_become_three_colours(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    Image.new("L", (6, 4), 9).save(folder / "train/cat/grey.png")
    Image.new("RGBA", (6, 4), (1, 2, 3, 4)).save(folder / "train/cat/glass.png")
    assert dataset(str(folder)).train.images.shape == (5, 3, 4, 6)


def test_folders_that_are_no_data_set_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"train' is not a folder; .*one folder a class"
    ):
        dataset(str(tmp_path))
    for part in ("train", "test"):
        (tmp_path / part / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match="train' holds no images"):
        dataset(str(tmp_path))
    photo(tmp_path / "train/cat/a.png", (1, 1, 1))
    photo(tmp_path / "test/cow/a.png", (1, 1, 1))
    with pytest.raises(ValueError, match=r"class 'cow' of .* has no folder in"):
        dataset(str(tmp_path))


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "train/cat/broken.png").write_bytes(
        (folder / "train/cat/a.png").read_bytes()[:40]
    )
    with pytest.raises(
        ValueError, match=r"broken.png' is not an image Pillow can read"
    ):
        dataset(str(folder))


def test_without_pillow_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match="pip install pillow"):
        dataset(str(folder))


USER_FILE = """
import torch
from tersify.lab import Data, Split

def rows(count):
    return torch.rand(count, 2, 4, 4), torch.arange(count) % 3

def pair():
    return rows(9), rows(3)

def whole():
    split = Split(*rows(6))
    return Data("mine", split, split, 3, (0.5,), (0.5,))

def wrong():
    return rows(9)[0]
"""


def test_a_function_of_the_user_makes_the_data(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(USER_FILE)
    assert dataset(f"{file}:whole").name == "mine"
    made = dataset(f"{file}:pair")
    assert (made.classes, made.shape, len(made.test)) == (3, (2, 4, 4), 3)
    images = normalize(made.train.images, made)
    assert torch.allclose(images.mean((0, 2, 3)), torch.zeros(2), atol=1e-5)
    assert np.allclose(images.std((0, 2, 3), correction=0), 1.0, atol=1e-5)


def test_a_function_that_is_missing_or_makes_something_else_is_named(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(USER_FILE)
    with pytest.raises(
        ValueError, match=r"returned a Tensor; it must return a tersify\.lab\.Data"
    ):
        dataset(f"{file}:wrong")
    with pytest.raises(ValueError, match="'piar'"):
        dataset(f"{file}:piar")
    with pytest.raises(ValueError, match="which does not exist"):
        dataset(f"{tmp_path}/other.py:pair")
    with pytest.raises(ValueError, match=r"names no function; write .*\.py:FUNCTION"):
        dataset(str(tmp_path / "data.py"))


def test_a_function_that_returns_no_tensors_is_told_what_it_must_return(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "def text(): return ('ab', 'cd')\ndef lists(): return (([1], [2]), ([3], [4]))\n"
    )
    with pytest.raises(ValueError, match="returned a tuple; it must return a tersify"):
        dataset(f"{tmp_path / 'mine.py'}:text")
    with pytest.raises(ValueError, match=r"images must be a torch\.Tensor, got a list"):
        dataset(f"{tmp_path / 'mine.py'}:lists")
