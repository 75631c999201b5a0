"""Inputs of 8 bits with a scale for each token (BitNet b1.58, Ma et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tersify.methods.inputs.input_method import (
    InputMethod,
    Seen,
    TrainedInput,
    register_input,
)
from tersify.methods.weight_math import straight_through
from tersify.tensor.inputs import TokenInput, token_levels


@register_input("token")
@dataclass(frozen=True, kw_only=True)
class TokenInputs(InputMethod):
    """Each token's features (of an image: the features of each sample) over the largest
    of their magnitudes.
    """

    bits: int = 8

    def __post_init__(self) -> None:
        TokenInput(bits=self.bits)

    def check(self, name: str, module: nn.Module) -> None:
        if not isinstance(module, nn.Linear):
            raise ValueError(
                f"{name!r} is a {type(module).__name__}, whose inputs are no tokens; name linear layers, or 'uniform'"
            )

    def quantizer(self, name: str, seen: Seen | None) -> TrainedInput:
        return TrainedTokens(self.bits)


class TrainedTokens(TrainedInput):
    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def facts(self) -> TokenInput:
        return TokenInput(bits=self.bits)

    def forward(self, x: Tensor) -> Tensor:
        return straight_through(token_levels(x.detach(), self.bits), x)
