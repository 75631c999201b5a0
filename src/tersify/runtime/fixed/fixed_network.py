"""A chain of fully connected layers in integers, made from a compressed model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tersify.runtime.fixed.fixed_layer import FixedLayer
from tersify.runtime.fixed.fixed_point import Format, Ints, Monitor, quantize
from tersify.tensor import CompressedTensor, Table
from tersify.tensor.inputs import METADATA

ACTIVATION_BITS = 8
BIAS_BITS = 8
SAMPLES = 512
# of the speech network's inputs: comes before the circuit
STANDARDISATION = frozenset({"mean", "spread"})


@dataclass(frozen=True, eq=False)
class FixedNetwork:
    """Layers by name; between two of them a ReLU."""

    layers: Mapping[str, FixedLayer]

    @property
    def input(self) -> Format:
        return next(iter(self.layers.values())).input

    def __call__(self, inputs: Ints, monitor: Monitor | None = None) -> Ints:
        monitor = monitor or Monitor()
        for name, layer in self.layers.items():
            inputs = layer(inputs, monitor, name)
        return inputs

    def random_inputs(self, count: int, seed: int = 0) -> Ints:
        """Integers over the whole range of the input format."""
        width = next(iter(self.layers.values())).inputs
        draw = np.random.default_rng(seed)
        return draw.integers(
            self.input.lowest, self.input.highest, (count, width), endpoint=True
        )


def fixed_network(
    model: Mapping[str, CompressedTensor | Tensor],
    *,
    input: Format | None = None,
    sample: npt.NDArray[np.floating] | None = None,
    rounding: str = "half-up",
) -> FixedNetwork:
    """The integer network of a model whose compressed matrices, in order, are its fully
    connected layers.

    Activations have 8 bits. The points of the hidden and output activations are put
    where the largest value that `sample` (rows of real inputs; standard normal ones by
    default) causes just fits.
    """
    if getattr(model, "metadata", {}).get(METADATA):
        raise ValueError(
            "the model's activations were quantized in training, and the integer network has its own 8-bit points; "
            "train it without a rule for activations"
        )
    names = [
        n
        for n, t in model.items()
        if isinstance(t, CompressedTensor) and len(t.shape) == 2
    ]
    if not names:
        raise ValueError(
            "the model has no compressed matrix; compress its layers with the method 'lookup'"
        )
    _check_chain(model, names)
    input = input or Format(width=ACTIVATION_BITS, fraction=4)
    width = model[names[0]].shape[1]
    if sample is None:
        sample = np.random.default_rng(0).standard_normal((SAMPLES, width))
    if sample.ndim != 2 or sample.shape[1] != width:
        raise ValueError(
            f"the sample must have rows of {width} inputs, got shape {sample.shape}"
        )
    layers: dict[str, FixedLayer] = {}
    # The sample runs through the integer layers themselves, so each point is placed for
    # what really arrives there.
    values = quantize(sample, input, name="the sample")
    for position, name in enumerate(names):
        layer = _layer(
            model,
            name,
            input,
            relu=position + 1 < len(names),
            values=values,
            rounding=rounding,
        )
        values = layer(values)
        input = layer.output
        layers[name.removesuffix(".weight")] = layer
    return FixedNetwork(layers)


def _layer(
    model: Mapping[str, CompressedTensor | Tensor],
    name: str,
    input: Format,
    *,
    relu: bool,
    values: Ints,
    rounding: str,
) -> FixedLayer:
    weight = model[name]
    assert isinstance(weight, CompressedTensor)
    try:
        table = Table.of(weight)
    except ValueError as problem:
        raise ValueError(f"{name!r}: {problem}") from None
    bias, bias_format = _bias(
        model.get(name.removesuffix("weight") + "bias"), weight.shape[0]
    )
    # The accumulator needs no output format, so any will do until the sums are known.
    draft = FixedLayer(
        table=table,
        bias=bias,
        bias_format=bias_format,
        input=input,
        output=input,
        relu=relu,
        rounding=rounding,
    )
    sums = draft.accumulator.real(draft.accumulate(values))
    # Bits before the point that the largest value needs; one of the eight bits is the
    # sign.
    largest = float(np.maximum(sums, 0).max() if relu else np.abs(sums).max())
    whole = max(math.ceil(math.log2(largest)), -ACTIVATION_BITS) if largest > 0 else 0
    output = Format(width=ACTIVATION_BITS, fraction=ACTIVATION_BITS - 1 - whole)
    return FixedLayer(
        table=table,
        bias=bias,
        bias_format=bias_format,
        input=input,
        output=output,
        relu=relu,
        rounding=rounding,
    )


def _bias(bias: CompressedTensor | Tensor | None, outputs: int) -> tuple[Ints, Format]:
    """8-bit integers and where their point is: as they were compressed, or rounded
    here.
    """
    if isinstance(bias, CompressedTensor):
        table = Table.of(bias)
        form = table.format
        return table.fine_words()[0][table.codes], Format(
            width=form.m + form.k, fraction=form.fraction + form.k
        )
    real = np.zeros(outputs) if bias is None else bias.detach().cpu().double().numpy()
    largest = float(np.abs(real).max())
    # No fewer than 0 bits before the point, so at most 7 fraction bits.
    whole = max(math.ceil(math.log2(largest)), 0) if largest else 0
    form8 = Format(width=BIAS_BITS, fraction=BIAS_BITS - 1 - whole)
    return quantize(real, form8, name="bias"), form8


def _check_chain(
    model: Mapping[str, CompressedTensor | Tensor], names: Sequence[str]
) -> None:
    # A tensor that no layer reads, such as a norm's, would silently be ignored.
    served = {*names, *(name.removesuffix("weight") + "bias" for name in names)}
    if left := [name for name in model if name not in served | STANDARDISATION]:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ValueError(
            f"{left[0]!r}{more} would be left out; only a plain chain of fully connected layers, each a compressed "
            "matrix, has a circuit here"
        )
    for before, behind in itertools.pairwise(names):
        outputs, inputs = model[before].shape[0], model[behind].shape[1]
        if outputs != inputs:
            raise ValueError(
                f"{before!r} has {outputs} outputs and {behind!r} {inputs} inputs; "
                "only a plain chain of fully connected layers has a circuit here"
            )
