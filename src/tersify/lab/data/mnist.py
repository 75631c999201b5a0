"""MNIST, and anything else in its idx format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch

from tersify.lab.data.roots import first_folder
from tersify.lab.data.types import Augmentation, Data, Split

FOLDERS = ("mnist", "MNIST/raw", "MNIST", ".")
LIMIT_BYTES = 2**31


def mnist(root: Path) -> Data:
    """The four idx files, plain or gzipped."""
    folder = _folder(root)
    return Data(
        name="mnist",
        train=_split(folder, "train"),
        test=_split(folder, "t10k"),
        classes=10,
        mean=(0.1307,),
        std=(0.3081,),
        augmentation=Augmentation(crop_padding=2),
        class_names=tuple("0123456789"),
    )


def _folder(root: Path) -> Path:
    for name in FOLDERS:
        if _find(root / name, "train", "images", 3) is not None:
            return root / name
    return first_folder(root, FOLDERS[:-1], "mnist")


def _find(folder: Path, part: str, what: str, dims: int) -> Path | None:
    names = (
        f"{part}-{what}{joint}idx{dims}-ubyte{end}"
        for joint in "-."
        for end in ("", ".gz")
    )
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _split(folder: Path, part: str) -> Split:
    images, labels = _read(folder, part, "images", 3), _read(folder, part, "labels", 1)
    if len(images) != len(labels):
        raise ValueError(
            f"the {part} files in {str(folder)!r} have {len(images)} images and {len(labels)} labels, "
            f"which must be equal; fetch them again"
        )
    return Split(
        torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64))
    )


def _read(folder: Path, part: str, what: str, dims: int) -> np.ndarray:
    path = _find(folder, part, what, dims)
    if path is None:
        raise ValueError(
            f"{str(folder / f'{part}-{what}-idx{dims}-ubyte')!r} is missing; fetch the data set again"
        )
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dims)
            shape = _shape(header, dims)
            size_bytes = int(np.prod(shape, dtype=object))
            if size_bytes > LIMIT_BYTES:
                raise ValueError(
                    f"its header asks for {size_bytes} bytes, more than {LIMIT_BYTES}"
                )
            # One byte more, so that a file which goes on is noticed.
            content = file.read(size_bytes + 1)
        if len(content) != size_bytes:
            more = "more" if len(content) > size_bytes else len(content)
            raise ValueError(
                f"its header promises {size_bytes} bytes and {more} follow"
            )
    # A gzip that was cut short ends in EOFError; other damage is an OSError or a
    # zlib.error.
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is not a whole idx file: {error}; fetch it again"
        ) from None
    return np.frombuffer(bytearray(content), dtype=np.uint8).reshape(shape)


def _shape(header: bytes, dims: int) -> tuple[int, ...]:
    # idx files begin with two zeros, the type (8: unsigned bytes) and the number of
    # dimensions.
    if len(header) != 4 + 4 * dims or header[:4] != bytes([0, 0, 8, dims]):
        raise ValueError(
            f"it must start with the bytes 0 0 8 {dims}, got {' '.join(map(str, header[:4])) or 'none'}"
        )
    shape = tuple(map(int, np.frombuffer(header[4:], dtype=">u4")))
    if 0 in shape:
        raise ValueError(f"its shape {shape} is empty")
    return shape
