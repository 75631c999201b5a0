"""The network in integers, bit for bit as a circuit computes it."""

from tersify.runtime.fixed.cordic import Cordic
from tersify.runtime.fixed.fft import FixedFft
from tersify.runtime.fixed.fixed_layer import VARIANTS, FixedLayer
from tersify.runtime.fixed.fixed_network import FixedNetwork, fixed_network
from tersify.runtime.fixed.fixed_point import (
    ROUNDINGS,
    Format,
    Ints,
    Monitor,
    Node,
    quantize,
    shift_right,
)

__all__ = [
    "ROUNDINGS",
    "VARIANTS",
    "Cordic",
    "FixedFft",
    "FixedLayer",
    "FixedNetwork",
    "Format",
    "Ints",
    "Monitor",
    "Node",
    "fixed_network",
    "quantize",
    "shift_right",
]
