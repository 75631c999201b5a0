"""What a data set is: images (or texts) and labels, how to normalize them, and how
training may vary them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HELD_OUT_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random changes of training images, sizes in pixels. All zero: the images as they
    are.
    """

    crop_padding: int = 0
    flip: bool = False
    cutout: int = 0

    def __post_init__(self) -> None:
        for name in ("crop_padding", "cutout"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"{name} must be at least 0 pixels, got {getattr(self, name)}"
                )


@dataclass(frozen=True)
class Split:
    """Images (uint8 N,C,H,W, or float32 N,C,… in 0..1) and their labels (int64 N).

    Texts are token numbers (int64 N,T), labelled each with a class, or every token with
    the one that follows (N,T).
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        for what, value in (("images", images), ("labels", labels)):
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"{what} must be a torch.Tensor, got a {type(value).__name__}"
                )
        fits = {
            torch.uint8: images.ndim == 4,
            torch.float32: images.ndim >= 2,
            torch.int64: images.ndim == 2,
        }
        if not fits.get(images.dtype, False):
            raise ValueError(
                f"images must be uint8 (N, C, H, W) or float32 (N, C, …), and texts int64 (N, T), "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        # Texts may have one label for each token.
        shapes = [images.shape[:1], *([images.shape] if self.is_text else [])]
        if labels.dtype != torch.int64 or labels.shape not in shapes or not len(labels):
            raise ValueError(
                f"labels must be int64 with one for each of the {len(images)} images, and not none, "
                f"got {labels.dtype} {tuple(labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: slice | Tensor) -> Split:
        return Split(self.images[which], self.labels[which])

    @property
    def samples(self) -> int:
        """How many there are, be they here or not."""
        return len(self)

    @property
    def is_text(self) -> bool:
        return self.images.dtype == torch.int64


@dataclass(frozen=True)
class Data:
    """A data set. `mean` and `std` are per channel, of images in 0..1."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation = field(default_factory=Augmentation)
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            raise ValueError(
                f"training and test images of {self.name!r} must have one shape, got "
                f"{tuple(self.train.images.shape[1:])} and {tuple(self.test.images.shape[1:])}"
            )
        for part, split in (("training", self.train), ("test", self.test)):
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= self.classes:
                wrong = low if low < 0 else high
                raise ValueError(
                    f"{part} labels of {self.name!r} must be 0..{self.classes - 1}, got {wrong}"
                )
        channels = self.train.images.shape[1]
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                raise ValueError(
                    f"{name} must have {channels} values or 1, one per channel, got {len(values)}"
                )
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean and std must have equally many values, got {len(self.mean)} and {len(self.std)}"
            )
        if min(self.std) <= 0:
            raise ValueError(f"std must be above 0, got {min(self.std)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image: C, H, W; of a text: T."""
        return tuple(self.train.images.shape[1:])

    def for_choosing(self) -> Data:
        """The training split alone, every tenth of it in the test's place: settings
        must not be chosen on the test.
        """
        if self.train.samples != len(self.train):
            raise ValueError(
                f"{self.name!r} comes in batches, of which no part can be held out; give data in memory"
            )
        # Every tenth and not the last tenth: many files are sorted by class.
        held_out = torch.arange(len(self.train)) % HELD_OUT_EVERY == 0
        return replace(
            self,
            name=f"{self.name} (validation)",
            train=self.train[~held_out],
            test=self.train[held_out],
        )


def normalize(images: Tensor, data: Data) -> Tensor:
    """uint8 (or float in 0..1) images → float32 of about zero mean and unit spread per
    channel; texts stay.
    """
    if images.dtype == torch.int64:
        return images
    unit = images.to(torch.float32) / 255.0 if images.dtype == torch.uint8 else images
    # A blocking copy of these few numbers would make the host wait for the device in
    # every batch.
    mean, std = torch.tensor([data.mean, data.std]).to(images.device, non_blocking=True)
    per_channel = (1, -1) + (1,) * (images.ndim - 2)
    return (unit - mean.view(per_channel)) / std.view(per_channel)
