"""Binary inputs: BNN (Hubara et al. 2016), and XNOR-Net (Rastegari et al. 2016), which
gives their size back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from tersify.methods.inputs.input_method import (
    InputMethod,
    Seen,
    TrainedInput,
    passed_inside,
    register_input,
)
from tersify.tensor.inputs import SignInput, signs


@register_input("sign")
@dataclass(frozen=True, kw_only=True)
class SignInputs(InputMethod):
    """−1 and +1; the gradient passes where |x| ≤ 1. `scaled` multiplies each output by
    its inputs' mean magnitude.

    The inputs must have both signs, so a batch norm or a Hardtanh stands in front of
    the layer and no ReLU.
    """

    needs_data: ClassVar[bool] = True
    scaled: bool = False

    def check(self, name: str, module: nn.Module) -> None:
        if self.scaled and not isinstance(
            module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
        ):
            raise ValueError(
                f"{name!r} is a {type(module).__name__}, which scaled is not for; leave scaled out there"
            )
        # The mean magnitude under each window is computed with zeros around the image.
        if self.scaled and getattr(module, "padding_mode", "zeros") != "zeros":
            raise ValueError(
                f"{name!r} pads by {module.padding_mode!r}, and scaled is for zeros; leave scaled out there"
            )

    def quantizer(self, name: str, seen: Seen | None) -> TrainedInput:
        if seen is not None and seen.lowest >= 0:
            raise ValueError(
                f"the input of {name!r} is never negative, so its sign says nothing; put a Hardtanh in place of the "
                "ReLU in front of it, or leave the layer out with a rule of its own"
            )
        return TrainedSigns(self.scaled)


class TrainedSigns(TrainedInput):
    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.scales_output = scaled

    def facts(self) -> SignInput:
        return SignInput(scaled=self.scales_output)

    def forward(self, x: Tensor) -> Tensor:
        return passed_inside(signs(x.detach()), x, -1.0, 1.0)
