"""Batches by index from a split that lives on the device as one tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from tersify import ranks
from tersify.lab.data import Augmentation, Data, Split, normalize
from tersify.lab.data.augment import Draws, apply_draws, draw
from tersify.lab.trainer.distributed import share_of


def seed_of(seed: int, epoch: int, purpose: str) -> int:
    """A 32-bit seed of its own for each (seed, epoch, purpose), so that resuming needs no history."""
    digest = hashlib.sha256(f"{seed}/{epoch}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


class Feed:
    """The training batches of an epoch, shuffled and augmented on the device, all of the same size.

    The last batch is filled up from the front of the epoch's permutation: every image is seen in every
    epoch, and a compiled model meets one shape only. All random numbers of an epoch are drawn at its
    start, so a batch is a pure function that `compiled` turns into a few kernels without a host sync.
    Of several ranks each gets its share of the same batches, augmented as one process would.
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
        if self.batch_size < ranks.world():
            raise ValueError(f"batch_size must be at least the number of ranks, {ranks.world()}, got {batch_size}")
        self._share = share_of(self.batch_size)
        self.share = (self._share.stop - self._share.start) / self.batch_size

        def prepare(images: Tensor, draws: Draws | None) -> Tensor:
            varied = images if draws is None else apply_draws(images, augmentation, draws)
            ready = normalize(varied, data)
            as_channels_last = channels_last and ready.ndim == 4
            return ready.contiguous(memory_format=torch.channels_last) if as_channels_last else ready

        self._prepare = torch.compile(prepare, dynamic=False) if compiled else prepare

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        home = self._split.images.device
        order = torch.Generator(home).manual_seed(seed_of(self._seed, epoch, "order"))
        permutation = torch.randperm(self._count, generator=order, device=home)
        permutation = torch.cat([permutation, permutation[: self.steps * self.batch_size - self._count]])
        draws = self._draws(epoch, len(permutation))
        for step, picked in enumerate(permutation.split(self.batch_size)):
            picked = picked[self._share]
            images = self._split.images[picked].to(self._device, non_blocking=True)
            labels = self._split.labels[picked].to(self._device, non_blocking=True)
            own = draws and Draws(*(d[step * self.batch_size :][: self.batch_size][self._share] for d in draws))
            yield self._prepare(images, own), labels

    def _draws(self, epoch: int, count: int) -> Draws | None:
        if self._augmentation == Augmentation():
            return None
        noise = torch.Generator(self._device).manual_seed(seed_of(self._seed, epoch, "augment"))
        one = self._split.images[:1]
        return draw(one.expand(count, *one.shape[1:]), self._augmentation, noise)


def to_device(split: Split, device: torch.device) -> Split:
    """The split on the device where it fits in half of the free memory, and where it was otherwise."""
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        if 2 * split.images.numel() * split.images.element_size() > free_bytes:
            return split
    return Split(split.images.to(device), split.labels.to(device))
