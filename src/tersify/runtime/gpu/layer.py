"""Layers from packed weights: they take the place of linear layers and of convolutions
of one pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import tersify.runtime.gpu.operator  # noqa: F401  (registers the operator)
from tersify.runtime.gpu.packed import Packed
from tersify.runtime.gpu.products import Settings, table_of

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class PackedLinear(nn.Module):
    """A linear layer whose weight is kept in its packed form alone. `channels_axis`: of
    the features in the input.
    """

    def __init__(
        self,
        packed: Packed,
        bias: Tensor | None,
        *,
        activations: str,
        settings: Settings,
        dtype: torch.dtype,
        channels_axis: int = -1,
        like: nn.Module,
    ) -> None:
        super().__init__()
        self.was_read = False
        self.activations, self.settings, self.channels_axis = (
            activations,
            settings,
            channels_axis,
        )
        self.form, self.rows, self.features = packed.form, packed.rows, packed.features
        self._dtype, self._weight_shape = dtype, tuple(_weight(like).shape)
        self._facts = {
            name: value
            for name, value in vars(like).items()
            if not name.startswith("_")
        }
        for name, tensor in (
            ("data", packed.data),
            ("starts", packed.starts),
            ("levels", packed.levels),
            ("table", table_of(packed, activations)),
            ("scale", packed.scale),
            ("bias", None if bias is None else bias.detach().float()),
        ):
            self.register_buffer(name, tensor)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if self.channels_axis == -1:
            return self.on_vectors(x)
        return self.on_vectors(x.movedim(self.channels_axis, -1)).movedim(
            -1, self.channels_axis
        )

    def on_vectors(self, x: Tensor) -> Tensor:
        """The features are the last axis."""
        if x.shape[-1] != self.features or x.dtype != self._dtype:
            raise ValueError(
                f"the layer takes {self.features} features in {self._dtype}, got {x.shape[-1]} in {x.dtype}; "
                "compile the network with an example like its inputs"
            )
        made: Tensor = torch.ops.tersify.packed_linear(
            x,
            self.data,
            self.starts,
            self.levels,
            self.table,
            self.scale,
            self.bias,
            self.form,
            self.rows,
            self.features,
            self.activations,
            self.settings.flat(),
        )
        return made

    def packed(self) -> Packed:
        tensors: dict[str, Any] = {
            name: getattr(self, name) for name in ("data", "starts", "levels", "scale")
        }
        return Packed(form=self.form, rows=self.rows, features=self.features, **tensors)

    @property
    def weight(self) -> Tensor:
        """Made dense whenever somebody reads it, which is noted; it is not kept."""
        self.was_read = True
        return self.packed().dense().to(self._dtype).reshape(self._weight_shape)

    def size_bytes(self) -> int:
        return sum(t.nbytes for t in self.buffers())

    def _apply(
        self, fn: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> PackedLinear:
        raise TypeError(
            "packed weights stay as they are; convert or move the module, and compile that again"
        )

    def __getattr__(self, name: str) -> Any:
        """What the layer in its place says of itself: in_features, kernel_size and the
        like.
        """
        facts = self.__dict__.get("_facts", {})
        return facts[name] if name in facts else super().__getattr__(name)

    def extra_repr(self) -> str:
        return f"{self.features} → {self.rows}, {self.form}, {self.activations} activations"


def matrix_of(layer: nn.Module) -> Tensor | None:
    """The weight as [rows, features] where the layer is a product over one axis; None
    for any other layer.
    """
    if type(layer) is nn.Linear:
        return layer.weight.detach()
    if type(layer) in CONVOLUTIONS and isinstance(layer, CONVOLUTIONS):
        axes = layer.weight.ndim - 2
        ones = (1,) * axes
        if (
            layer.groups == 1
            and layer.kernel_size == layer.stride == ones
            and layer.padding in ((0,) * axes, "valid", "same")
        ):
            return layer.weight.detach().flatten(1)
    return None


def channels_axis_of(layer: nn.Module) -> int:
    """Of the input; images may come without a batch."""
    return -1 if isinstance(layer, nn.Linear) else -(_weight(layer).ndim - 1)


def _weight(layer: nn.Module) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight
