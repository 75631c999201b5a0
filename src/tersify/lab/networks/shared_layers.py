"""The pieces that more than one reference network uses."""

from __future__ import annotations

import math

from torch import nn

from tersify.checks import check_choice

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "hardtanh": nn.Hardtanh}
INITS = ("paper", "he")


def activation_of(name: str) -> type[nn.Module]:
    check_choice("activation", name, list(ACTIVATIONS))
    return ACTIVATIONS[name]


def conv3x3(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)


def initialize_(model: nn.Module, init: str) -> None:
    """`paper`: the wide start a ternary network needs; `he`: the usual one, best for
    dense and scaled networks.
    """
    check_choice("init", init, INITS)
    spread_weights_(model, 0.25 if init == "paper" else 0.5)


def spread_weights_(model: nn.Module, power: float = 0.25) -> None:
    """Normal weights of *variance* √(2/n) (paper 1); n = k·k·out of a conv, the inputs
    of a linear layer.

    The usual √(2/n) as the standard deviation would start a ternary network with nearly
    every weight at zero. A classifier has too few outputs for the conv's rule: 10 would
    give a spread of 0.67 in a range of ±1.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            n = math.prod(module.kernel_size) * module.out_channels
        elif isinstance(module, nn.Linear):
            n = module.in_features
        else:
            continue
        nn.init.normal_(module.weight, 0.0, (2.0 / n) ** power)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
