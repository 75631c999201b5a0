"""Ternary weights with many zeros as lists of the others, a byte each: packed form,
reference, launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.runtime.gpu.launch import TYPES, Launch, ceiling, held

LANES = 32
ENTRIES = 16  # of the widest load
FARTHEST = 127
SEGMENT = 2048  # features of a lane, about: longer lists are more even, and fewer


@dataclass(frozen=True, kw_only=True, eq=False)
class Lists:
    """See cuda/sparse.cu. `data`: bytes [loads, 32 lanes, 16]; `starts`: the first load
    of every 32 segments.
    """

    data: Tensor
    starts: Tensor
    rows: int
    features: int
    segments: int
    length: int

    @property
    def padded(self) -> int:
        return self.segments * self.length


def cut(features: int) -> tuple[int, int]:
    """Segments of a row, and their length."""
    segments = 1
    while segments < LANES and features > segments * SEGMENT * 1.5:
        segments *= 2
    return segments, 8 * ceiling(features, 8 * segments)


def pack(signs: Tensor) -> Lists:
    rows, features = signs.shape
    segments, length = cut(features)
    padded = torch.nn.functional.pad(signs, (0, segments * length - features)).view(
        rows * segments, length
    )
    unit, place = padded.nonzero(as_tuple=True)
    negative = padded[unit, place] < 0
    before = torch.cat([place.new_tensor([-1]), place[:-1]])
    first = torch.cat([unit.new_tensor([-1]), unit[:-1]]) != unit
    distance = place - torch.where(first, -1, before)
    far = (distance - 1) // FARTHEST  # gaps that take two bytes more
    size = 1 + 2 * far
    entry = torch.repeat_interleave(torch.arange(len(unit), device=signs.device), size)
    within = (
        torch.arange(len(entry), device=signs.device) - (size.cumsum(0) - size)[entry]
    )
    jumps = torch.where(within % 2 == 0, 2 * FARTHEST, 1)
    ends = 2 * (distance - FARTHEST * far)[entry] + negative[entry].int()
    byte = torch.where(within == 2 * far[entry], ends, jumps).to(torch.uint8)
    owner = unit[entry]

    slices = ceiling(rows * segments, LANES)
    counts = torch.bincount(owner, minlength=slices * LANES)
    loads = (counts.view(slices, LANES).amax(1) + ENTRIES - 1) // ENTRIES
    starts = torch.cat([loads.new_zeros(1), loads.cumsum(0)])
    rank = (
        torch.arange(len(entry), device=signs.device)
        - (counts.cumsum(0) - counts)[owner]
    )
    home, lane = owner // LANES, owner % LANES
    at = loads[home] * ENTRIES - counts[owner] + rank  # lists are filled in front
    data = torch.zeros(
        int(starts[-1]), LANES, ENTRIES, dtype=torch.uint8, device=signs.device
    )
    data[starts[home] + at // ENTRIES, lane, at % ENTRIES] = byte
    return Lists(
        data=data,
        starts=starts.to(torch.int32),
        rows=rows,
        features=features,
        segments=segments,
        length=length,
    )


def unpack(lists: Lists) -> Tensor:
    """The reference of the packed form: −1, 0 and 1 as int8."""
    slices = len(lists.starts) - 1
    made = torch.zeros(
        slices * LANES, lists.length + 1, dtype=torch.int8, device=lists.data.device
    )
    starts = lists.starts.tolist()
    for home in range(slices):
        entries = (
            lists.data[starts[home] : starts[home + 1]]
            .transpose(0, 1)
            .reshape(LANES, -1)
            .long()
        )
        places = (entries >> 1).cumsum(1)
        made[home * LANES : (home + 1) * LANES].scatter_add_(
            1, places, (1 - 2 * (entries & 1)).to(torch.int8)
        )
    units = lists.rows * lists.segments
    return made[:units, 1:].reshape(lists.rows, lists.padded)[:, : lists.features]


def shared_bytes(segments: int, length: int) -> int:
    """The vector in fp32, with a zero before each segment."""
    return 4 * segments * (length + 1)


def launch(
    lists: Lists,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    warps: int,
    in_flight: int,
    rounded: bool,
) -> Launch:
    """`x`: [vectors, padded features]; `rounded`: each vector is rounded to int8 first."""
    slices = len(lists.starts) - 1
    return Launch(
        kernel="sparse",
        files=("common.cuh", "rounding.cuh", "sparse.cu"),
        defines={
            "ACT": TYPES[x.dtype],
            "OUT": TYPES[out.dtype],
            "ROUND": int(rounded),
            "WARPS": warps,
            "UN": in_flight,
            "HOLD": held(lists.padded, 32 * warps),
            "SWAP": 0,
        },
        grid=(ceiling(slices, warps), len(x)),
        threads=32 * warps,
        shared_bytes=shared_bytes(lists.segments, lists.length),
        arguments=(
            lists.data,
            lists.starts,
            x,
            None,
            None,
            0.0,
            scale,
            bias,
            out,
            lists.rows,
            lists.padded,
            slices,
            lists.segments,
            lists.length,
        ),
    )
