"""Ternary weights with many zeros as lists of the others, a byte each: packed form,
reference, launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.runtime.gpu.launch import TYPES, Launch, ceiling, held

LANES = 32
ENTRIES = 8  # of a load: wider ones would leave more of the last one empty
FARTHEST = 63
BACK, AHEAD = 128, 127  # addresses between two entries, at most
UNIT = 2  # bytes of a number in shared memory, where it is not in fp32
AHEAD_OF_OTHERS = 12  # entries of a list that may be the next one
BANKS = 32
SEGMENT = 512  # features of a lane, about: longer lists are fewer
_NONE = 1 << 40  # no entry
_HEAD = 18  # bits of a head's place; its fillings stand above


@dataclass(frozen=True, kw_only=True, eq=False)
class Lists:
    """See cuda/sparse.cu. `data`: bytes [loads, 32 lanes, 8]; `starts`: the first load
    of every 32 lists, the end, and a head for each list.
    """

    data: Tensor
    starts: Tensor
    rows: int
    features: int

    @property
    def padded(self) -> int:
        return 8 * ceiling(self.features, 8)

    @property
    def segments(self) -> int:
        return cut(self.features)

    @property
    def slices(self) -> int:
        return ceiling(self.rows * self.segments, LANES)


def cut(features: int) -> int:
    """Lists of a row."""
    segments = 1
    while segments < LANES and features > segments * SEGMENT * 1.5:
        segments *= 2
    return segments


def pack(signs: Tensor) -> Lists:
    rows, features = signs.shape
    segments = cut(features)
    row, address = _addresses(signs)
    many = torch.bincount(row, minlength=rows)
    part = ((_rank(row, many) + 1) * segments - 1) // many[row]
    owner = row * segments + part  # equal parts of a row

    slices = ceiling(rows * segments, LANES)
    counts = torch.bincount(owner, minlength=slices * LANES)
    rank = _rank(owner, counts)
    loads = (counts.view(slices, LANES).amax(1) + ENTRIES - 1) // ENTRIES
    fillings = (loads * ENTRIES).repeat_interleave(LANES) - counts
    longest = int(loads.max()) * ENTRIES
    table = torch.full((slices * LANES, longest), _NONE, device=signs.device)
    table[owner, rank] = address
    visits = _ordered(table.view(slices, LANES, -1), fillings.view(slices, -1))
    visits = visits.view(slices * LANES, -1)

    nowhere = 2 * 8 * ceiling(features, 8)  # where a zero lies
    first = torch.where(counts > 0, visits[:, 0], nowhere) if longest else counts * 0
    steps = torch.diff(visits, dim=1, prepend=visits[:, :1])
    ends = torch.cat([loads.new_zeros(1), loads.cumsum(0)])
    data = torch.zeros(
        int(ends[-1]), LANES, ENTRIES, dtype=torch.uint8, device=signs.device
    )
    at = fillings[owner] + rank
    data[ends[owner // LANES] + at // ENTRIES, owner % LANES, at % ENTRIES] = (
        steps[owner, at] & 255
    ).to(torch.uint8)
    starts = torch.cat([ends, fillings << _HEAD | first]).to(torch.int32)
    return Lists(data=data, starts=starts, rows=rows, features=features)


def _ordered(table: Tensor, fillings: Tensor) -> Tensor:
    """[slices, lanes, entries] in rising order, `_NONE` behind the last → the address
    that each lane reads at each step, its first one during its fillings. Every lane
    takes the one of its next entries whose bank the fewest lanes before it took. The
    entries left over stay close enough that rising order remains a way through them.
    """
    slices, lanes, steps = table.shape
    device = table.device
    wide = AHEAD_OF_OTHERS
    rest = torch.cat([table, table.new_full((slices, lanes, wide + 2), _NONE)], 2)
    window = rest[..., : wide + 1].clone()
    taken = torch.full((slices, lanes), wide + 1, device=device)
    current = torch.zeros(slices, lanes, dtype=torch.long, device=device)
    visits = torch.zeros_like(table)
    places, home = (
        torch.arange(wide, device=device),
        torch.arange(slices, device=device),
    )
    # the last step at which a lane stands at its first entry
    waits = torch.minimum(fillings, torch.tensor(steps - 1, device=device))
    for step in range(steps):
        used = torch.zeros(slices, BANKS, dtype=torch.long, device=device)
        if step:
            standing = (step <= waits).long()
            used.scatter_add_(1, (current * UNIT // 4) % BANKS, standing)
        for turn in range(lanes):
            lane = (turn + 5 * step) % lanes
            near = window[:, lane]
            entry = near[:, :wide]
            gap = near[:, 2:] - near[:, :-2]  # of neighbours, without the one between
            good = entry - near[:, :1] <= BACK
            good[:, 1:] &= (gap <= AHEAD) | (near[:, 2:] == _NONE)
            good &= entry != _NONE
            if step:
                away = entry - current[:, lane, None]
                good &= (away <= AHEAD) & (away >= -BACK)
            bank = (entry * UNIT // 4) % BANKS
            price = used.gather(1, bank) * wide + places
            best = torch.where(good, price, _NONE).argmin(1)
            goes = good.gather(1, best[:, None])[:, 0]
            if step:
                goes &= step > waits[:, lane]
            chosen = entry.gather(1, best[:, None])[:, 0]
            current[:, lane] = torch.where(goes, chosen, current[:, lane])
            used.scatter_add_(1, bank.gather(1, best[:, None]), goes[:, None].long())
            tail = rest[home, lane, taken[:, lane]]
            after = torch.cat([near[:, 1:], tail[:, None]], 1)
            gone = torch.arange(wide + 1, device=device) >= best[:, None]
            window[:, lane] = torch.where(gone & goes[:, None], after, near)
            taken[:, lane] = torch.where(
                goes, (taken[:, lane] + 1).clamp(max=rest.shape[2] - 1), taken[:, lane]
            )
        visits[..., step] = current
    return visits


def _addresses(signs: Tensor) -> tuple[Tensor, Tensor]:
    """Row and address (2 · feature, + 1 for −1) of all entries, in order: the weights
    that are not zero, and two that cancel after every 63 features without one.
    """
    row, place = signs.nonzero(as_tuple=True)
    address = 2 * place + (signs[row, place] < 0)
    before = torch.cat([place[:1], place[:-1]])
    begins = torch.cat([row.new_tensor([-1]), row[:-1]]) != row
    far = torch.where(begins, 0, (place - before - 1) // FARTHEST)
    size = 1 + 2 * far
    entry = torch.repeat_interleave(size)
    within = _rank(entry, size)
    between = 2 * (before[entry] + FARTHEST * (within // 2 + 1)) + within % 2
    return row[entry], torch.where(within == 2 * far[entry], address[entry], between)


def _rank(owner: Tensor, counts: Tensor) -> Tensor:
    """The place of each among those of its owner; owners are in order."""
    places = torch.arange(len(owner), device=owner.device)
    return places - (counts.cumsum(0) - counts)[owner]


def unpack(lists: Lists) -> Tensor:
    """The reference of the packed form: −1, 0 and 1 as int8."""
    slices, device = lists.slices, lists.data.device
    starts = lists.starts[: slices + 1].tolist()
    heads = lists.starts[slices + 1 :].long().view(slices, LANES)
    rows = slices * LANES // lists.segments + 1
    made = torch.zeros(rows, lists.padded + 1, dtype=torch.int8, device=device)
    for home in range(slices):
        entries = (
            lists.data[starts[home] : starts[home + 1]]
            .transpose(0, 1)
            .reshape(LANES, -1)
            .view(torch.int8)
            .long()
        )
        fillings, first = heads[home] >> _HEAD, heads[home] & ((1 << _HEAD) - 1)
        places = entries.cumsum(1) + first[:, None]
        counted = torch.arange(entries.shape[1], device=device) >= fillings[:, None]
        unit = home * LANES + torch.arange(LANES, device=device)[:, None]
        at = (unit // lists.segments) * (lists.padded + 1) + places // 2
        sign = ((1 - 2 * (places % 2)) * counted).to(torch.int8)
        made.view(-1).scatter_add_(0, at.reshape(-1), sign.reshape(-1))
    return made[: lists.rows, : lists.features]


def shared_bytes(features: int, unit: int = 4) -> int:
    """The vector, every number beside its negative, and a zero."""
    return 2 * unit * 8 * ceiling(features, 8) + 16


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
    unit = 4 if x.dtype == torch.float32 and not rounded else UNIT
    return Launch(
        kernel="sparse",
        files=("common.cuh", "rounding.cuh", "sparse.cu"),
        defines={
            "ACT": TYPES[x.dtype],
            "OUT": TYPES[out.dtype],
            "ROUND": int(rounded),
            "WARPS": warps,
            "UN": in_flight,
            "UNIT": unit,
            "HOLD": held(lists.padded, 32 * warps),
            "SWAP": 0,
        },
        grid=(ceiling(lists.slices, warps), len(x)),
        threads=32 * warps,
        shared_bytes=shared_bytes(lists.features, unit),
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
            lists.slices,
            lists.segments,
        ),
    )
