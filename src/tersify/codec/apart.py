"""Which tensors of a group of codes are coded apart from the others: what suits one need
not suit its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import zstandard

from tersify.codec.entropy import order0_bits
from tersify.codec.open_group import OpenGroup, encode_open
from tersify.cpus import usable_cpus

# Tensors of a group that are few enough to be coded one by one as well, how large the
# smallest must be, and what a group of its own takes in the header and the directory.
FEW_TENSORS, MIN_APART_CODES, GROUP_BYTES = 8, 1 << 12, 96
# Boxes of a group that are alike share an offset, and there are 16 of them.
KINDS_OF_A_GROUP = 16
MAX_KINDS = 16 * KINDS_OF_A_GROUP
# of the entropy: what zstd must save where codes repeat each other
REPEATING = 0.9
# of the entropy: a group that is larger than that has tables that suit nobody
NEAR = 1.001
Counts = npt.NDArray[np.float64]


def better_parts(groups: Sequence[tuple[int | str, OpenGroup]]) -> list[OpenGroup]:
    """The groups of codes, each whole or in parts that take fewer bytes together."""
    coded = [(key, group) for key, group in groups if isinstance(key, int)]
    if not coded:
        return []
    # The coders are C++ and let go of Python's lock.
    with ThreadPoolExecutor(min(usable_cpus(), len(coded))) as threads:
        made = threads.map(_better, *zip(*coded, strict=True))
        return [part for parts in made for part in parts]


def _better(levels: int, group: OpenGroup) -> list[OpenGroup]:
    names = dict.fromkeys(group.names)
    if len(names) < 2:
        return [group]
    size = len(encode_open(levels, group)[1])
    own = dict(zip(names, group.apart({name: name for name in names}), strict=True))
    if len(own) <= FEW_TENSORS:
        smallest = min(each.elements for each in own.values())
        parts = list(own.values()) if smallest >= MIN_APART_CODES else [group]
    else:
        parts = group.apart(_parts(levels, own, size))
    if len(parts) < 2:
        return [group]
    apart = sum(len(encode_open(levels, part)[1]) + GROUP_BYTES for part in parts)
    return parts if apart < size + GROUP_BYTES else [group]


def _parts(
    levels: int, own: Mapping[str, OpenGroup], size_bytes: int
) -> dict[str, Hashable]:
    """A part for each tensor: codes that repeat each other, and the others by their
    frequencies where the group is larger than the entropy of its tensors.
    """
    codes = {name: np.concatenate(group.codes) for name, group in own.items()}
    counts = np.array(
        [np.bincount(each, minlength=levels) for each in codes.values()], np.float64
    )
    bits = np.array(list(map(order0_bits, counts)))
    zstd = zstandard.ZstdCompressor(level=3)
    zipped = np.array([8 * len(zstd.compress(each.data)) for each in codes.values()])
    repeats = zipped < REPEATING * bits
    # Telling a frequency takes half the logarithm of the codes it is measured on.
    used = (counts > 0).sum(1)
    told = bits + used * np.log2(np.maximum(2, counts.sum(1))) / 2
    large = repeats.any() or 8 * size_bytes > NEAR * told.sum()
    kinds = _kinds(counts, bits, used) if large else np.zeros(len(own), np.int64)
    parts = np.where(repeats, -1, kinds // KINDS_OF_A_GROUP)
    return dict(zip(own, parts.tolist(), strict=True))


def _kinds(
    counts: Counts, bits: Counts, used: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Tensors whose codes are distributed alike have the same number: each joins the
    nearest kind, or begins one where that costs less. Large ones come first.
    """
    kinds = np.zeros(len(counts), np.int64)
    sums = np.zeros((0, counts.shape[1]))
    # minus the logarithm of how likely a kind makes each code
    costs = np.zeros((0, counts.shape[1]))
    for i in np.argsort(-counts.sum(1), kind="stable"):
        # A table takes about four bits for each code, as the coder reckons.
        excess = costs @ counts[i] - bits[i]
        nearest = int(excess.argmin()) if len(excess) else -1
        if nearest < 0 or (excess[nearest] > 4 * used[i] + 8 and len(sums) < MAX_KINDS):
            nearest = len(sums)
            sums = np.concatenate([sums, np.zeros((1, counts.shape[1]))])
            costs = np.concatenate([costs, np.zeros((1, counts.shape[1]))])
        kinds[i] = nearest
        sums[nearest] += counts[i]
        likely = sums[nearest] + 0.5
        costs[nearest] = math.log2(likely.sum()) - np.log2(likely)
    return kinds
