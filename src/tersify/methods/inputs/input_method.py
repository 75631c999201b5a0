"""InputMethod: what the input of a layer should become while the network trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from tersify.methods.method_settings import made_from_table, table_of
from tersify.tensor.inputs import InputQuantizer


@dataclass(frozen=True)
class Seen:
    """What the calibration batches brought to one layer."""

    largest: float  # magnitude
    mean: float  # magnitude
    lowest: float


class TrainedInput(InputQuantizer):
    """An input quantizer in training; what changes lives in its buffers and parameters."""


@dataclass(frozen=True, kw_only=True)
class InputMethod:
    """A frozen description. `needs_data`: its ranges begin where calibration batches
    say.
    """

    name: ClassVar[str]
    needs_data: ClassVar[bool] = False

    def check(self, name: str, module: nn.Module) -> None:
        """Raise where the layer's input cannot become this."""

    def quantizer(self, name: str, seen: Seen | None) -> TrainedInput:
        """For the layer `name`; raises where what was seen there cannot become this."""
        raise NotImplementedError

    def to_table(self) -> dict[str, Any]:
        return table_of(self)


InputMethodT = TypeVar("InputMethodT", bound=type[InputMethod])
_METHODS: dict[str, type[InputMethod]] = {}


def register_input(name: str) -> Callable[[InputMethodT], InputMethodT]:
    def add(cls: InputMethodT) -> InputMethodT:
        cls.name = name
        _METHODS[name] = cls
        return cls

    return add


def registered_inputs() -> Mapping[str, type[InputMethod]]:
    return dict(_METHODS)


def input_from_table(table: Mapping[str, Any]) -> InputMethod:
    method = made_from_table(table, _METHODS, "activation method")
    assert isinstance(method, InputMethod)
    return method


def passed_inside(value: Tensor, x: Tensor, low: Any, high: Any) -> Tensor:
    """Exactly `value` forward; backward `x` gets the gradient where it lies between the
    borders.
    """
    # The clamp's gradient is 1 inside and 0 outside; its value cancels.
    clipped = torch.clamp(x, low, high)
    return value + (clipped - clipped.detach())
