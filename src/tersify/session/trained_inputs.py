"""The inputs of layers that a session quantizes while the network is trained."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from tersify.calibration import Calibration, seen_inputs
from tersify.methods.inputs import TrainedInput
from tersify.recipe import Recipe
from tersify.tensor.inputs import (
    LAYERS,
    FixedInput,
    leave_input,
    quantize_input,
    quantizer_of,
)


class TrainedInputs:
    """The layers that a recipe's rules for activations name, each with its quantizer."""

    def __init__(self) -> None:
        self._held: list[tuple[nn.Module, TrainedInput]] = []

    @property
    def quantizers(self) -> list[TrainedInput]:
        return [quantizer for _, quantizer in self._held]

    def install_(
        self, model: nn.Module, recipe: Recipe, calibration: Calibration | None
    ) -> None:
        """After the weights, since what reaches a layer is what the layers before it
        make of theirs.
        """
        layers = {
            name: module
            for name, module in model.named_modules()
            if _takes_one_input(module)
        }
        for name, module in layers.items():
            if isinstance(quantizer_of(module), TrainedInput):
                raise ValueError(
                    f"the input of {name!r} belongs to a session already; end that one with bake_()"
                )
        chosen = recipe.assign_inputs(layers)
        for name, method in chosen.items():
            method.check(name, layers[name])
        asking = {
            name: layers[name] for name, method in chosen.items() if method.needs_data
        }
        if asking and calibration is None:
            raise ValueError(
                f"the ranges of activations such as the input of {next(iter(asking))!r} begin where data says; "
                "give calibration= batches of (inputs, targets)"
            )
        seen = (
            seen_inputs(model, asking, calibration)
            if asking and calibration is not None
            else {}
        )
        for name, method in chosen.items():
            # On the layer's device, where its scale meets the input.
            quantizer = method.quantizer(name, seen.get(name)).to(
                next(layers[name].parameters()).device
            )
            quantize_input(layers[name], quantizer)
            self._held.append((layers[name], quantizer))

    def leave_(self) -> None:
        """The layers take their inputs as they come again."""
        for layer, _ in self._held:
            leave_input(layer)
        self._held = []

    def fix_(self) -> None:
        """Training is over: ranges stand where they are."""
        for layer, quantizer in self._held:
            quantize_input(
                layer, FixedInput(quantizer.facts()).to(next(layer.parameters()).device)
            )
        self._held = []


def _takes_one_input(module: nn.Module) -> bool:
    """Attention hands the weights of its output layer on to a function, so that no
    input reaches the layer itself.
    """
    return isinstance(module, LAYERS) and not isinstance(
        module, NonDynamicallyQuantizableLinear
    )
