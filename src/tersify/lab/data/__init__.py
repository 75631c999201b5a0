"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tersify.lab.data.augment import augment
from tersify.lab.data.cifar import CIFAR10, CIFAR100, cifar
from tersify.lab.data.digits import digits
from tersify.lab.data.image_folder import image_folder
from tersify.lab.data.mnist import mnist
from tersify.lab.data.polarity import polarity, polarity_bytes
from tersify.lab.data.roots import data_root
from tersify.lab.data.stream import Stream, stream
from tersify.lab.data.types import Augmentation, Data, Split, normalize
from tersify.lab.data.user import user_data
from tersify.lab.names import unknown
from tersify.userfile import names_function, refuse_bare_file

_LOADERS: dict[str, Callable[[Path], Data]] = {
    "digits": lambda root: digits(),
    "cifar10": lambda root: cifar("cifar10", CIFAR10, root),
    "cifar100": lambda root: cifar("cifar100", CIFAR100, root),
    "mnist": mnist,
    "polarity": polarity,
    "polarity-bytes": polarity_bytes,
}


def dataset(name: str, *, root: str | Path | None = None) -> Data:
    """digits, cifar10, cifar100, mnist, polarity, polarity-bytes, the path of an image
    folder, or `file.py:function`.

    Named sets lie under `root`, else the environment's TERSIFY_DATA, else ./data.
    `PATH@64` scales a folder's images to 64×64.
    """
    if name in _LOADERS:
        return _LOADERS[name](data_root(root))
    if names_function(name):
        return user_data(name)
    refuse_bare_file(name)
    path, at, size = name.rpartition("@")
    if at and size.isdecimal():
        return image_folder(Path(path), int(size))
    if Path(name).is_dir():
        return image_folder(Path(name))
    raise unknown(
        "data set", name, [*_LOADERS, "a folder of images", "file.py:function"]
    )


__all__ = [
    "Augmentation",
    "Data",
    "Split",
    "Stream",
    "augment",
    "dataset",
    "normalize",
    "stream",
]
