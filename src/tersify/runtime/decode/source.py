"""Where a decoder's weights come from: the modules of a model, or a mapping such as an
opened file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tersify.runtime.decode.architecture import UnknownModelError
from tersify.tensor import CompressedTensor
from tersify.tensor.origin import origins_of

# transformers' layers that round their inputs to 8 bits
ROUNDING_CLASSES = ("AutoBitLinear", "BitLinear")


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """[outputs, features], and what is added to every output."""

    weight: Tensor | CompressedTensor
    bias: Tensor | None = None
    origin: CompressedTensor | None = None  # the packed form that it may still be
    rounds: bool = False  # the layer itself rounds every input vector to 8 bits


@dataclass(frozen=True, kw_only=True)
class Norm:
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool


class Source(Protocol):
    def matrix(self, name: str) -> Matrix: ...

    def norm(self, name: str) -> Norm: ...


class ModuleSource:
    """The modules of a live model; what they compute is asked of their classes."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._origins = origins_of(model)

    def _module(self, name: str) -> Any:
        try:
            return self._model.get_submodule(name)
        except AttributeError:
            raise UnknownModelError(
                f"the model has no module {name!r}, which models of its type have"
            ) from None

    def matrix(self, name: str) -> Matrix:
        layer = self._module(name)
        kind, bias = type(layer).__name__, getattr(layer, "bias", None)
        if type(layer) in (nn.Linear, nn.Embedding):
            return Matrix(
                weight=layer.weight,
                bias=bias,
                origin=self._origins.get(f"{name}.weight"),
            )
        # GPT-2's linear layers lie the other way
        if kind == "Conv1D" and hasattr(layer, "nf"):
            return Matrix(weight=layer.weight.t(), bias=bias)
        if kind in ROUNDING_CLASSES and getattr(layer, "rms_norm", None) is None:
            return Matrix(weight=_bit_weight(layer), bias=bias, rounds=True)
        raise UnknownModelError(
            f"{name!r} is a {kind}, for which the decoder has no kernel"
        )

    def norm(self, name: str) -> Norm:
        layer = self._module(name)
        eps = getattr(layer, "eps", getattr(layer, "variance_epsilon", None))
        centred = isinstance(layer, nn.LayerNorm)
        if eps is None or (
            not centred and not type(layer).__name__.endswith("RMSNorm")
        ):
            raise UnknownModelError(
                f"{name!r} is a {type(layer).__name__}, for which the decoder has no kernel"
            )
        return Norm(
            weight=layer.weight,
            bias=getattr(layer, "bias", None),
            eps=float(eps),
            centred=centred,
        )


class MappingSource:
    """Tensors and packed tensors by their names, read when they are needed, and the
    configuration they belong to.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor | CompressedTensor], config: Any
    ) -> None:
        self._tensors = tensors
        self._transposed = config.model_type == "gpt2"
        self._eps = float(
            getattr(config, "rms_norm_eps", getattr(config, "layer_norm_epsilon", 1e-5))
        )

    def _tensor(self, name: str) -> Tensor | CompressedTensor:
        if name not in self._tensors:
            raise ValueError(
                f"the weights have no {name!r}, which the configuration asks for; is it another model's?"
            )
        return self._tensors[name]

    def _bias(self, name: str) -> Tensor | None:
        stored = f"{name}.bias"
        return dense_of(self._tensor(stored)) if stored in self._tensors else None

    def matrix(self, name: str) -> Matrix:
        found, bias = self._tensor(f"{name}.weight"), self._bias(name)
        # GPT-2's layers are stored as [features, outputs]; its embeddings are not.
        if self._transposed and ".h." in name:
            return Matrix(weight=dense_of(found).t(), bias=bias)
        return Matrix(weight=found, bias=bias)

    def norm(self, name: str) -> Norm:
        bias = self._bias(name)
        weight = dense_of(self._tensor(f"{name}.weight"))
        return Norm(weight=weight, bias=bias, eps=self._eps, centred=self._transposed)


def dense_of(tensor: Tensor | CompressedTensor) -> Tensor:
    return tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor


def _bit_weight(layer: Any) -> Tensor:
    """Signs times one scale, as transformers' BitNet layers use them."""
    # four signs a byte, rows a quarter of the matrix apart
    if layer.weight.dtype == torch.uint8:
        packed = layer.weight
        # Codes 0, 1, 2 stand for −1, 0, 1.
        signs = torch.cat(
            [(packed >> shift & 3).to(torch.float32) - 1 for shift in (0, 2, 4, 6)]
        )
        return signs / layer.weight_scale.float()
    weight = layer.weight.detach().float()
    if not layer.online_quant:
        return weight * layer.weight_scale.float()
    # BitNet b1.58: round(W / mean|W|) clipped to −1..1, times mean|W|.
    scale = 1.0 / weight.abs().mean().clamp(min=1e-5)
    return (weight * scale).round().clamp(-1, 1) / scale
