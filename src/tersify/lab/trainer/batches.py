"""Batches by index from a split that lives on the device as one tensor."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from tersify import ranks
from tersify.lab.data import Augmentation, Data, Split, Stream, augment, normalize
from tersify.lab.data.augment import Draws, apply_draws, draw
from tersify.lab.data.stream import checked_batch, drawing_from
from tersify.lab.seeds import set_seed
from tersify.lab.trainer.distributed import part_of_rank


def seed_of(seed: int, epoch: int, purpose: str) -> int:
    """A 32-bit seed of its own for each (seed, epoch, purpose), so that resuming needs
    no history.
    """
    digest = hashlib.sha256(f"{seed}/{epoch}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


class Feed:
    """The training batches of an epoch, shuffled and augmented on the device, all of
    the same size.

    The last batch is filled up from the front of the epoch's permutation: every image
    is seen in every epoch, and a compiled model meets one shape only. All random
    numbers of an epoch are drawn at its start, so a batch is a pure function that
    `compiled` turns into a few kernels without a host sync. Of several ranks each gets
    its part of the same batches, augmented as one process would.
    """

    def __init__(
        self,
        data: Data,
        *,
        batch_size: int,
        seed: int,
        device: torch.device,
        augmentation: Augmentation,
        channels_last: bool = False,
        compiled: bool = False,
    ) -> None:
        self._seed = seed
        self._device = device
        self._split = to_device(data.train, device)
        self._count = len(data.train)
        self._augmentation = augmentation
        self.batch_size = min(batch_size, self._count)
        self.steps = -(-self._count // self.batch_size)
        self.samples = self.steps * self.batch_size  # that an epoch shows
        if self.batch_size < ranks.world():
            raise ValueError(
                f"batch_size must be at least the number of ranks, {ranks.world()}, got {batch_size}"
            )
        self._part = part_of_rank(self.batch_size)
        self.fraction = (self._part.stop - self._part.start) / self.batch_size

        def prepare(images: Tensor, draws: Draws | None) -> Tensor:
            varied = (
                images if draws is None else apply_draws(images, augmentation, draws)
            )
            ready = normalize(varied, data)
            as_channels_last = channels_last and ready.ndim == 4
            return (
                ready.contiguous(memory_format=torch.channels_last)
                if as_channels_last
                else ready
            )

        self._prepare = torch.compile(prepare, dynamic=False) if compiled else prepare

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        home = self._split.images.device
        order = torch.Generator(home).manual_seed(seed_of(self._seed, epoch, "order"))
        permutation = torch.randperm(self._count, generator=order, device=home)
        # Filled up to whole batches from its own front; see the class.
        permutation = torch.cat(
            [permutation, permutation[: self.steps * self.batch_size - self._count]]
        )
        draws = self._draws(epoch, len(permutation))
        for step, picked in enumerate(permutation.split(self.batch_size)):
            # After the split into global batches, so every rank agrees on what a batch
            # is.
            picked = picked[self._part]
            images = self._split.images[picked].to(self._device, non_blocking=True)
            labels = self._split.labels[picked].to(self._device, non_blocking=True)
            own = draws and Draws(
                *(
                    d[step * self.batch_size :][: self.batch_size][self._part]
                    for d in draws
                )
            )
            yield self._prepare(images, own), labels

    def _draws(self, epoch: int, count: int) -> Draws | None:
        if self._augmentation == Augmentation():
            return None
        noise = torch.Generator(self._device).manual_seed(
            seed_of(self._seed, epoch, "augment")
        )
        one = self._split.images[:1]
        return draw(one.expand(count, *one.shape[1:]), self._augmentation, noise)


class StreamFeed:
    """The training batches of an epoch, as they come from a DataLoader or another
    source.

    An epoch is a pass over the source or, where it is told to have another length, goes
    on where the one before it stopped. Every pass has a seed of its own, so that a run
    that is resumed skips to its place in the same order.
    """

    fraction = 1.0

    def __init__(
        self,
        data: Data,
        *,
        batch_size: int,
        seed: int,
        device: torch.device,
        augmentation: Augmentation,
    ) -> None:
        assert isinstance(data.train, Stream)
        if ranks.world() > 1:
            raise ValueError(
                f"{data.name!r} comes in batches, which one process reads; train it without torchrun"
            )
        self._data, self._seed, self._device, self._augmentation = (
            data,
            seed,
            device,
            augmentation,
        )
        self._source = data.train.batches(batch_size, shuffle=True)
        self._is_pass = data.train.steps is None
        self.steps = data.train.steps or len(self._source)  # type: ignore[arg-type]
        self.samples = 0
        self._position, self._endless = 0, self._passes(1)

    def _passes(self, begin: int) -> Iterator[tuple[Tensor, Tensor]]:
        for number in itertools.count(begin):
            with drawing_from(seed_of(self._seed, number, "order")):
                batches = iter(self._source)
                first = next(batches, None)  # a DataLoader draws its order only now
            if first is None:
                raise ValueError(
                    f"{self._data.name!r} gave no batch in pass {number}; it must start anew every time"
                )
            for batch in itertools.chain([first], batches):
                yield checked_batch(batch)

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        start = (epoch - 1) * self.steps
        if self._is_pass:
            self._endless = self._passes(epoch)
        elif self._position != start:
            self._endless = self._passes(1)
            # A source cannot be entered in the middle: what was seen before is read and
            # dropped.
            for _ in range(start):
                next(self._endless)
        set_seed(seed_of(self._seed, epoch, "global"))  # skipping has drawn from it
        noise = torch.Generator(self._device).manual_seed(
            seed_of(self._seed, epoch, "augment")
        )
        self._position, self.samples = start, 0
        for images, labels in itertools.islice(self._endless, self.steps):
            if (
                labels.numel()
                and not 0 <= int(labels.min()) <= int(labels.max()) < self._data.classes
            ):
                raise ValueError(
                    f"training labels of {self._data.name!r} must be 0..{self._data.classes - 1}, got "
                    f"{int(labels.min())}..{int(labels.max())}; say how many classes there are"
                )
            self._position += 1
            self.samples += len(labels)
            moved = images.to(self._device, non_blocking=True)
            yield (
                augment(moved, self._augmentation, noise),
                labels.to(self._device, non_blocking=True),
            )


def to_device(split: Split, device: torch.device) -> Split:
    """The split on the device where it fits in half of the free memory, and where it
    was otherwise.
    """
    if isinstance(split, Stream):
        return split
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        # Half of the free memory is left to weights and activations.
        if 2 * split.images.numel() * split.images.element_size() > free_bytes:
            return split
    return Split(split.images.to(device), split.labels.to(device))
