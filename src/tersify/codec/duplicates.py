"""Tensors that are equal bit for bit, such as the layers of an encoder that was made by
copying one, or views of one memory, stored once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping

import torch
from torch import Tensor

from tersify.codec.views import Same, numbers_at, seen
from tersify.tensor import CompressedTensor
from tersify.tensor.compressed import same_bits

MIN_BYTES = 256  # below it a reference takes as much as the tensor
# of other shapes: below it the file rather stays one that older readers know
MIN_VIEW_BYTES = 1 << 12
SAMPLE = 64
Model = Mapping[str, CompressedTensor | Tensor]


def equal_tensors(model: Model, *, found: Collection[str] = ()) -> dict[str, Same]:
    """Each name whose tensor has the content of another one → where that is held.

    A tensor in another shape must have the other one's codes, unless its name is among
    `found`: then the same numbers will do.
    """
    first: dict[Hashable, list[str]] = {}
    in_order: dict[Hashable, list[str]] = {}
    sizes = Counter((tensor.numel(), tensor.dtype) for tensor in model.values())
    same: dict[str, Same] = {}
    # Of a weight and its views, what takes least is stored; only a matrix can be told
    # as a transpose.
    cost = {name: (_side_bytes(t), len(t.shape) == 2) for name, t in model.items()}
    for name in sorted(model, key=cost.__getitem__):
        tensor = model[name]
        size_bytes = tensor.numel() * tensor.dtype.itemsize
        if size_bytes < MIN_BYTES:
            continue
        # The sketch only narrows the search; every candidate is compared in full.
        alike = first.setdefault(_sketch(tensor), [])
        other = next((other for other in alike if _equal(model[other], tensor)), None)
        may_view = (
            size_bytes >= MIN_VIEW_BYTES and sizes[tensor.numel(), tensor.dtype] > 1
        )
        sketches = _sketches(tensor) if may_view else []
        same_as = (
            _viewed(model, tensor, sketches, in_order, name in found)
            if other is None
            else Same(name=other)
        )
        if same_as is not None:
            same[name] = same_as
            continue
        alike.append(name)
        for sketch in sketches[:1]:
            in_order.setdefault(sketch, []).append(name)
    return same


def _side_bytes(tensor: CompressedTensor | Tensor) -> int:
    """What a tensor takes beside its codes."""
    if isinstance(tensor, Tensor):
        return tensor.numel() * tensor.dtype.itemsize
    parts = (tensor.codebook, tensor.values, tensor.scale, tensor.column_scale)
    return sum(part.numel() * part.dtype.itemsize for part in parts if part is not None)


def _viewed(
    model: Model,
    tensor: CompressedTensor | Tensor,
    sketches: list[Hashable],
    in_order: Mapping[Hashable, list[str]],
    any_form: bool,
) -> Same | None:
    """The tensor that holds the same numbers in another shape, or the transpose."""
    shape = tuple(tensor.shape)
    for turned, sketch in enumerate(sketches):
        for other in in_order.get(sketch, ()):
            given = seen(model[other], shape, turned=bool(turned))
            if _equal(given, tensor) or (
                (any_form or isinstance(tensor, Tensor))
                and same_bits(_dense(given), _dense(tensor))
            ):
                return Same(name=other, turned=bool(turned))
    return None


def _sketches(tensor: CompressedTensor | Tensor) -> list[Hashable]:
    """A few numbers in row-major order, and of a matrix those of its transpose."""
    shape = tuple(tensor.shape)
    index = torch.linspace(0, tensor.numel() - 1, SAMPLE, dtype=torch.float64).long()
    places = [index]
    if len(shape) == 2 and min(shape) > 1:
        rows, columns = shape
        places.append(index % rows * columns + index // rows)
    some = numbers_at(tensor, torch.cat(places)).contiguous().view(torch.uint8)
    numbers = some.numpy().reshape(len(places), SAMPLE, -1)
    # One number everywhere takes no room in any shape.
    if (numbers == numbers[:1, :1]).all():
        return []
    return [(tensor.numel(), tensor.dtype, each.tobytes()) for each in numbers]


def _sketch(tensor: CompressedTensor | Tensor) -> Hashable:
    """What equal tensors have in common, from a few elements."""
    held = tensor.codes if isinstance(tensor, CompressedTensor) else tensor
    flat = held.detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // SAMPLE)].cpu().contiguous().view(torch.uint8)
    return type(tensor), tuple(tensor.shape), tensor.dtype, some.numpy().tobytes()


def _equal(a: CompressedTensor | Tensor, b: CompressedTensor | Tensor) -> bool:
    if isinstance(a, CompressedTensor):
        return isinstance(b, CompressedTensor) and a.equal(b)
    return isinstance(b, Tensor) and same_bits(a, b)


def _dense(tensor: CompressedTensor | Tensor) -> Tensor:
    return tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor
