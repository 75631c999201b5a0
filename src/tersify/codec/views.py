"""A tensor that has the content of another one: the same numbers in another shape, or
its transpose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tersify.tensor import CompressedTensor


@dataclass(frozen=True, kw_only=True)
class Same:
    """The tensor that holds the content: the same numbers in row-major order, or those
    of the transpose if `turned`, which only a matrix is.
    """

    name: str
    turned: bool = False


def seen(
    tensor: CompressedTensor | Tensor, shape: tuple[int, ...], *, turned: bool
) -> CompressedTensor | Tensor:
    """The content of a tensor in another shape or transposed; in codes where they can
    say it.
    """
    if turned:
        held = seen(tensor, shape[::-1], turned=False)
        return held.t().contiguous() if isinstance(held, Tensor) else _turned(held)
    if isinstance(tensor, Tensor):
        return tensor.reshape(shape).contiguous()
    if tensor.shape == shape:
        return tensor
    # Row-major order keeps slices of the axes that both shapes begin with.
    both = next(
        (
            i
            for i, (a, b) in enumerate(zip(shape, tensor.shape, strict=False))
            if a != b
        ),
        min(len(shape), len(tensor.shape)),
    )
    scales: list[Tensor | None] = []
    for scale in (tensor.scale, tensor.column_scale):
        if scale is None:
            scales.append(None)
            continue
        sizes = [1] * (len(tensor.shape) - scale.ndim) + list(scale.shape)
        if any(size != 1 for size in sizes[both:]):
            return tensor.to_dense().reshape(shape)
        scales.append(scale.reshape(sizes[:both] + [1] * (len(shape) - both)))
    if tensor.axis is not None and tensor.axis >= both:
        return tensor.to_dense().reshape(shape)
    return replace(
        tensor,
        shape=shape,
        codes=tensor.codes.reshape(shape),
        scale=scales[0],
        column_scale=scales[1],
    )


def _turned(tensor: CompressedTensor) -> CompressedTensor:
    codes = tensor.codes.t().contiguous()
    values = tensor.values
    if values is not None:
        # Survivors stand in row-major order, which is now that of the columns.
        plain = replace(tensor, scale=None, column_scale=None).to_dense()
        values = plain.t()[codes.bool()]
    scale, column_scale = (
        None if s is None else torch.atleast_2d(s).t().contiguous()
        for s in (tensor.scale, tensor.column_scale)
    )
    return replace(
        tensor,
        shape=tuple(codes.shape),
        codes=codes,
        values=values,
        axis=None if tensor.axis is None else 1 - tensor.axis,
        scale=scale,
        column_scale=column_scale,
    )


def numbers_at(tensor: CompressedTensor | Tensor, index: Tensor) -> Tensor:
    """The numbers of a tensor at these places of its row-major order."""
    if isinstance(tensor, Tensor) and tensor.is_contiguous():
        return tensor.detach().reshape(-1)[index].cpu()
    places = torch.unravel_index(index, tensor.shape)
    if isinstance(tensor, Tensor):
        return tensor.detach()[places].cpu()
    if tensor.codebook is None:
        return tensor.to_dense()[places].cpu()
    codes = tensor.codes[places].int()
    book, axis = tensor.codebook, tensor.axis
    made = book[codes] if axis is None else book[places[axis], codes]
    for scale in (tensor.scale, tensor.column_scale):
        made = made if scale is None else made * scale.expand(tensor.shape)[places]
    return made.cpu()
