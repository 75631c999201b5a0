"""Quantized activations: one file for each family, attached by a recipe's `activations`
rules.
"""

from tersify.methods.inputs.input_method import (
    InputMethod,
    Seen,
    TrainedInput,
    input_from_table,
    registered_inputs,
)
from tersify.methods.inputs.sign import SignInputs
from tersify.methods.inputs.token import TokenInputs
from tersify.methods.inputs.uniform_inputs import TernaryInputs, UniformInputs

__all__ = [
    "InputMethod",
    "Seen",
    "SignInputs",
    "TernaryInputs",
    "TokenInputs",
    "TrainedInput",
    "UniformInputs",
    "input_from_table",
    "registered_inputs",
]
