"""Convolution as one matrix product: im2col for 1, 2 and 3 dimensions.

The lowered product is `weight @ columns` per group, with

- weight (M, K): one row an output channel, its columns in the order (input channel of the group, kernel place);
- columns (groups·K, N): rows in the order (group, input channel, kernel place), columns (image, output place);

all row-major. The other operand order is its transpose: `columns.T @ weight.T`, (N, M).

A transposed convolution is lowered as the plain convolution of its zero-stuffed input
with the flipped kernel, so that its product is its output and nothing has to be summed
up afterwards; the stuffed zeros are zeros of `columns`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

WEIGHT_LAYOUT = "rows: output channel; columns: (input channel of the group, kernel place), row-major"
COLUMNS_LAYOUT = "rows: (group, input channel, kernel place); columns: (image, output place), row-major"
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A convolution without its weight. `padding` holds (before, after) for each
    dimension.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1
    padding_mode: str = "zeros"
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        given = (self.kernel, self.stride, self.padding, self.dilation)
        if not 1 <= self.ndim <= 3 or any(len(part) != self.ndim for part in given):
            raise ValueError(
                f"a convolution has 1 to 3 dimensions, the same in every part, got {self}"
            )
        for what in ("kernel", "stride", "dilation"):
            if min(getattr(self, what)) < 1:
                raise ValueError(
                    f"{what} must be at least 1 everywhere, got {getattr(self, what)}"
                )
        if min(map(sum, self.padding)) < 0 or self.groups < 1:
            raise ValueError(
                f"padding must not be negative and groups at least 1, got {self}"
            )
        if self.padding_mode not in PADDING_MODES:
            raise ValueError(
                f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {self.padding_mode!r}"
            )
        if self.transposed and self.padding_mode != "zeros":
            raise ValueError(
                f"a transposed convolution pads with zeros only, got {self.padding_mode!r}"
            )

    @property
    def ndim(self) -> int:
        return len(self.kernel)

    @classmethod
    def of(
        cls, module: nn.Module, output_padding: tuple[int, ...] | None = None
    ) -> Geometry:
        """Of a torch.nn convolution; a transposed one called with an output_size pads
        otherwise than it says.
        """
        if not isinstance(module, _ConvNd):
            raise ValueError(
                f"lowering takes Conv1d/2d/3d and their transposes, got {type(module).__name__}"
            )
        padding = module.padding
        if padding == "valid":
            pairs = tuple((0, 0) for _ in module.kernel_size)
        elif isinstance(padding, str):  # "same": the odd place goes behind
            totals = [
                d * (k - 1)
                for d, k in zip(module.dilation, module.kernel_size, strict=True)
            ]
            pairs = tuple((total // 2, total - total // 2) for total in totals)
        else:
            pairs = tuple((p, p) for p in padding)
        transposed = isinstance(module, _ConvTransposeNd)
        extra = (
            tuple(module.output_padding) if output_padding is None else output_padding
        )
        return cls(
            kernel=tuple(module.kernel_size),
            stride=tuple(module.stride),
            padding=pairs,
            dilation=tuple(module.dilation),
            groups=module.groups,
            padding_mode=module.padding_mode,
            transposed=transposed,
            output_padding=extra if transposed else (),
        )

    @classmethod
    def from_mapping(cls, stored: Mapping[str, Any]) -> Geometry:
        """From the JSON form of `to_mapping`."""
        parts: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in stored.items()
        }
        try:
            return cls(
                **parts
                | {"padding": tuple((int(a), int(b)) for a, b in parts["padding"])}
            )
        except (TypeError, KeyError) as error:
            raise ValueError(
                f"{dict(stored)} describes no convolution: {error}"
            ) from None

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    def output_size(self, spatial: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            # torch's formula for the output size of a convolution, in each dimension.
            (n + before + after - d * (k - 1) - 1) // s + 1
            for n, (before, after), d, k, s in zip(
                self._stuffed_size(spatial),
                self._conv_padding(),
                self.dilation,
                self.kernel,
                self._step(),
                strict=True,
            )
        )

    def _step(self) -> tuple[int, ...]:
        return (1,) * self.ndim if self.transposed else self.stride

    def _stuffed_size(self, spatial: tuple[int, ...]) -> tuple[int, ...]:
        if not self.transposed:
            return spatial
        # s − 1 zeros between every two neighbours.
        return tuple((n - 1) * s + 1 for n, s in zip(spatial, self.stride, strict=True))

    def _conv_padding(self) -> tuple[tuple[int, int], ...]:
        """Padding of the plain convolution; what a transposed one takes away from its
        output it gets less of here.
        """
        if not self.transposed:
            return self.padding
        extra = self.output_padding or (0,) * self.ndim
        reach = [d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True)]
        return tuple(
            (r - before, r - after + e)
            for r, (before, after), e in zip(reach, self.padding, extra, strict=True)
        )

    def prepared(self, images: Tensor) -> Tensor:
        """The input (batch, channels, …) as the plain convolution without padding reads
        it.
        """
        if self.transposed:
            size = self._stuffed_size(tuple(images.shape[2:]))
            places: Any = (..., *(slice(None, None, s) for s in self.stride))
            stuffed = images.new_zeros((*images.shape[:2], *size))
            stuffed[places] = images
            images = stuffed
        # F.pad takes the last dimension first. A negative padding crops.
        pads = [p for pair in reversed(self._conv_padding()) for p in pair]
        return F.pad(
            images,
            pads,
            mode="constant" if self.padding_mode == "zeros" else self.padding_mode,
        )


def lower_weight(weight: Tensor, geometry: Geometry) -> Tensor:
    """(M, K) of a convolution's weight as torch holds it."""
    if geometry.transposed:  # (in, out / groups, …) → flipped (out, in / groups, …)
        weight = (
            weight.unflatten(0, (geometry.groups, -1)).transpose(1, 2).flatten(0, 1)
        )
        weight = weight.flip(*range(2, weight.ndim))
    return weight.reshape(weight.shape[0], -1)


def raise_weight(matrix: Tensor, geometry: Geometry) -> Tensor:
    """The torch weight again: the inverse of `lower_weight`."""
    weight = matrix.reshape(matrix.shape[0], -1, *geometry.kernel)
    if geometry.transposed:
        weight = weight.flip(*range(2, weight.ndim))
        weight = (
            weight.unflatten(0, (geometry.groups, -1)).transpose(1, 2).flatten(0, 1)
        )
    return weight


def column_count(images_shape: tuple[int, ...], geometry: Geometry) -> int:
    """N: images × output places."""
    return images_shape[0] * math.prod(geometry.output_size(tuple(images_shape[2:])))


def lower_input(
    images: Tensor, geometry: Geometry, columns: Tensor | None = None
) -> Tensor:
    """(groups·K, N) of the input (batch, channels, …): all columns, or only those whose
    numbers are given.

    Windows are views, so that choosing columns never builds the others.
    """
    windows = geometry.prepared(images)
    for axis, (kernel, dilation, step) in enumerate(
        zip(geometry.kernel, geometry.dilation, geometry._step(), strict=True), start=2
    ):
        # The dilated window's whole reach, of which every dilation-th element is a tap.
        windows = windows.unfold(axis, dilation * (kernel - 1) + 1, step)[
            ..., ::dilation
        ]
    places = windows.shape[2 : 2 + geometry.ndim]
    # (batch, *places, channels, *kernel)
    by_place = windows.movedim(1, 1 + geometry.ndim)
    if columns is None:
        return by_place.reshape(images.shape[0] * math.prod(places), -1).T
    chosen = by_place[torch.unravel_index(columns, (images.shape[0], *places))]
    return chosen.reshape(len(columns), -1).T


def multiply(weight: Tensor, columns: Tensor, groups: int = 1) -> Tensor:
    """weight (M, K) @ columns (groups·K, N) → (M, N), each group of rows with its own
    columns.
    """
    if groups == 1:
        return weight @ columns
    return torch.bmm(
        weight.unflatten(0, (groups, -1)), columns.unflatten(0, (groups, -1))
    ).flatten(0, 1)


def raise_output(
    product: Tensor, images_shape: tuple[int, ...], geometry: Geometry
) -> Tensor:
    """(M, N) → (batch, M, *output), as the convolution returns it."""
    places = geometry.output_size(tuple(images_shape[2:]))
    return product.reshape(product.shape[0], images_shape[0], *places).movedim(0, 1)
