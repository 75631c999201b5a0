"""Images in folders: one folder a class, under train/ and test/ (or val/)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tersify.lab.data.types import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Augmentation,
    Data,
    Split,
)

SUFFIXES = {
    ".png",
    ".jpg",
    ".jpeg",
    ".bmp",
    ".gif",
    ".webp",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
}
SHAPE = "one folder a class under train/ and test/ (or val/)"


def image_folder(path: Path, size: int | None = None) -> Data:
    """RGB images, all of one size. `size` makes them so: the largest middle square,
    scaled to size × size.
    """
    if size is not None and size < 1:
        raise ValueError(f"the size of images must be at least 1 pixel, got {size}")
    train = path / "train"
    test = next(
        (path / name for name in ("test", "val") if (path / name).is_dir()),
        path / "test",
    )
    for folder in (train, test):
        if not folder.is_dir():
            raise ValueError(
                f"{str(folder)!r} is not a folder; an image folder must have {SHAPE}"
            )
    names = _classes(train)
    extra = [name for name in _classes(test) if name not in names]
    if extra:
        raise ValueError(
            f"class {extra[0]!r} of {str(test)!r} has no folder in {str(train)!r}; add or remove it"
        )
    train_split, test_split = _split(train, names, size), _split(test, names, size)
    side = min(train_split.images.shape[2:])
    return Data(
        name=path.name,
        train=train_split,
        test=test_split,
        classes=len(names),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        # An eighth of the side, as CIFAR's 4 of 32.
        augmentation=Augmentation(crop_padding=side // 8, flip=True),
        class_names=tuple(names),
    )


def _classes(folder: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".")
    )


def _split(folder: Path, names: list[str], size: int | None) -> Split:
    images, labels = [], []
    for label, name in enumerate(names):
        # Sorted, because file systems list files in any order and runs must repeat.
        for file in sorted((folder / name).rglob("*")):
            if file.suffix.lower() in SUFFIXES:
                images.append(_decode(file, size))
                labels.append(label)
                if images[-1].shape != images[0].shape:
                    first, other = (
                        f"{a.shape[2]}×{a.shape[1]}" for a in (images[0], images[-1])
                    )
                    raise ValueError(
                        f"{str(file)!r} is {other} and the images before it {first}, but all must have one "
                        f"size; add it to the folder's name (PATH@64 scales to 64×64)"
                    )
    if not images:
        raise ValueError(
            f"{str(folder)!r} holds no images; an image folder must have {SHAPE}"
        )
    return Split(torch.from_numpy(np.stack(images)), torch.tensor(labels))


def _decode(file: Path, size: int | None) -> np.ndarray:
    """(3, H, W) uint8."""
    image_module, ops = _pillow()
    try:
        with image_module.open(file) as opened:
            rgb = ops.exif_transpose(opened).convert("RGB")
    # Pillow answers a damaged image with OSError, SyntaxError, ValueError and more.
    except Exception as error:
        raise ValueError(
            f"{str(file)!r} is not an image Pillow can read ({error}); replace or remove it"
        ) from None
    if size is not None:
        rgb = ops.fit(rgb, (size, size))
    return np.ascontiguousarray(np.asarray(rgb, dtype=np.uint8).transpose(2, 0, 1))


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ValueError(
            "a folder of images needs the package Pillow, which is missing; pip install pillow"
        ) from None
    return Image, ImageOps
