"""Binary inputs: BNN (Hubara et al. 2016), and XNOR-Net (Rastegari et al. 2016), which gives their size back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tersify.methods.inputs.base import InputMethod, Seen, TrainedInput, passed_inside, register_input
from tersify.tensor.inputs import SignInput, signs


@register_input("sign")
@dataclass(frozen=True, kw_only=True)
class SignInputs(InputMethod):
    """−1 and +1; the gradient passes where |x| ≤ 1. `scaled` multiplies each output by its inputs' mean magnitude."""

    scaled: bool = False

    def check(self, name: str, module: nn.Module) -> None:
        if self.scaled and not isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            raise ValueError(f"{name!r} is a {type(module).__name__}, which scaled is not for; leave scaled out there")
        if self.scaled and getattr(module, "padding_mode", "zeros") != "zeros":
            raise ValueError(
                f"{name!r} pads by {module.padding_mode!r}, and scaled is for zeros; leave scaled out there"
            )

    def quantizer(self, seen: Seen | None) -> TrainedInput:
        return TrainedSigns(self.scaled)


class TrainedSigns(TrainedInput):
    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.scales_output = scaled

    def facts(self) -> SignInput:
        return SignInput(scaled=self.scales_output)

    def forward(self, x: Tensor) -> Tensor:
        return passed_inside(signs(x.detach()), x, -1.0, 1.0)
