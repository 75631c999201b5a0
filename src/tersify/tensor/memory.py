"""Which tensors lie in the same memory: tied ones, and views such as a matrix and its
transpose.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy


def memory_key(tensor: Tensor) -> Hashable:
    """Equal for two tensors that are the same numbers in the same memory."""
    if not isinstance(tensor, Tensor) or not _has_memory(tensor):
        return id(tensor)
    return (
        tensor.device,
        tensor.data_ptr(),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
    )


@dataclass(frozen=True, eq=False)
class View:
    """All numbers of a tensor are numbers of another: those at `index` of the other
    one, flattened.
    """

    of: str
    index: Tensor


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Which tensors share memory, by name. A tensor that holds all numbers of another is
    its leader; of two equal ones the first leads.
    """

    views: dict[str, View] = field(default_factory=dict)
    # each has numbers that the other lacks
    overlaps: list[tuple[str, str]] = field(default_factory=list)
    # several entries are one number, as `expand` makes them
    folded: list[str] = field(default_factory=list)


def find_sharing(tensors: Mapping[str, Tensor]) -> Sharing:
    """Looks at single numbers only where ranges of memory meet, so it is cheap for a
    network without views.
    """
    found = Sharing()
    for group in _meeting(tensors):
        # From here on every number is an address, so all kinds of views (slices,
        # transposes, strides) are compared alike.
        places = {name: addresses(tensors[name]) for name in group}
        distinct = {name: place.unique() for name, place in places.items()}
        found.folded.extend(
            name for name in group if len(distinct[name]) < places[name].numel()
        )
        # Largest first: a tensor can only be a view of one that has at least as many
        # numbers.
        leaders: list[str] = []
        for name in sorted(
            group, key=lambda name: (-len(distinct[name]), name in found.folded)
        ):
            met = {
                leader: torch.isin(distinct[name], distinct[leader])
                for leader in leaders
            }
            whole = next(
                (leader for leader, inside in met.items() if bool(inside.all())), None
            )
            if whole is None:
                found.overlaps.extend(
                    (leader, name)
                    for leader, inside in met.items()
                    if bool(inside.any())
                )
                leaders.append(name)
            # The same bytes as another type, or a leader that cannot be written to:
            # neither can serve as the source of the numbers.
            elif tensors[whole].dtype != tensors[name].dtype or whole in found.folded:
                found.overlaps.append((whole, name))
            else:
                # Find each address of the view among the leader's sorted addresses.
                order = places[whole].flatten().argsort()
                at = torch.searchsorted(
                    places[whole].flatten()[order], places[name].flatten()
                )
                found.views[name] = View(whole, order[at].reshape(places[name].shape))
    return found


def addresses(tensor: Tensor) -> Tensor:
    """Where in memory each number lies, in the tensor's shape."""
    # Outer sum over the dimensions of index · stride, in bytes.
    place = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        place = place.unsqueeze(-1) + torch.arange(size) * (
            stride * tensor.element_size()
        )
    return place + tensor.data_ptr()


def _meeting(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Names whose ranges of memory meet, group by group; a tensor alone counts where it
    is folded.
    """
    ranges = sorted(
        (str(t.device), *_range(t), name)
        for name, t in tensors.items()
        if _has_memory(t)
    )
    groups: list[list[str]] = []
    device, end = "", 0
    for where, start, stop, name in ranges:
        # Ranges are sorted by start, so one that starts behind all earlier ends meets
        # none of them. Addresses of different devices say nothing about each other.
        if where != device or start >= end:
            groups.append([])
            end = 0
        groups[-1].append(name)
        device, end = where, max(end, stop)
    position = {name: place for place, name in enumerate(tensors)}
    folded = [_range(tensors[group[0]]) for group in groups]
    return [
        sorted(group, key=position.__getitem__)
        for group, (start, stop) in zip(groups, folded, strict=True)
        if len(group) > 1 or tensors[group[0]].nbytes > stop - start
    ]


def _range(tensor: Tensor) -> tuple[int, int]:
    last = sum(
        (size - 1) * stride
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _has_memory(tensor: Tensor) -> bool:
    """Neither a stand-in without numbers, nor a part of a tensor that is spread over
    processes.
    """
    # `full_tensor` marks a DTensor, whose address says nothing about the whole.
    plain = (
        tensor.layout == torch.strided
        and not tensor.is_meta
        and not hasattr(tensor, "full_tensor")
    )
    return plain and not is_lazy(tensor) and tensor.numel() > 0
