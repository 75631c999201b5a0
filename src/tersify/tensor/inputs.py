"""Quantized layer inputs: what a network in eval mode does to them, as plain facts that
a file can hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

METADATA = "activations"  # of a packed model: the facts by the layer's name
LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_CONVOLUTIONS = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}
_CHILD = "tersify_input"
_FACTOR = "tersify_output_factor"
LEAST_RANGE = 1e-5


@dataclass(frozen=True, kw_only=True)
class UniformInput:
    """The integers low…high times one scale."""

    kind: ClassVar[str] = "uniform"
    scale: float
    low: int
    high: int

    def __post_init__(self) -> None:
        _check(
            math.isfinite(self.scale) and self.scale > 0,
            "scale must be a positive number",
            self.scale,
        )
        _check(
            -128 <= self.low <= 0 < self.high <= 255,
            "low and high must lie in -128…0 and 1…255",
            self,
        )


@dataclass(frozen=True, kw_only=True)
class TokenInput:
    """Integers of `bits` bits times a scale for each token, by the largest of its
    features.
    """

    kind: ClassVar[str] = "token"
    bits: int

    def __post_init__(self) -> None:
        _check(self.bits in range(2, 9), "bits must be 2..8", self.bits)


@dataclass(frozen=True, kw_only=True)
class SignInput:
    """−1 and +1; `scaled`: the output is multiplied by the mean magnitude of the inputs
    it was summed from.
    """

    kind: ClassVar[str] = "sign"
    scaled: bool


InputFacts = UniformInput | TokenInput | SignInput
_KINDS: dict[str, Any] = {
    cls.kind: cls for cls in (UniformInput, TokenInput, SignInput)
}
_TYPES = {"float": float, "int": int, "bool": bool}


def _check(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ValueError(f"of a quantized input {rule}, got {value!r}")


def to_plain(facts: InputFacts) -> dict[str, Any]:
    return {"kind": facts.kind, **asdict(facts)}


def from_plain(table: object) -> InputFacts:
    """The inverse of `to_plain`, for tables that anybody may have written."""
    values = dict(table) if isinstance(table, Mapping) else {}
    kind = values.pop("kind", None)
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(
            f"a quantized input must be of kind {', '.join(_KINDS)}, got {table!r}"
        )
    # The file is foreign: names and types must match exactly. `type` and not
    # `isinstance`, since True would pass for an int.
    wanted = {
        name: _TYPES[str(annotation)]
        for name, annotation in cls.__annotations__.items()
        if name != "kind"
    }
    if values.keys() != wanted.keys() or any(
        type(values[name]) is not wanted[name] for name in wanted
    ):
        raise ValueError(
            f"a quantized input of kind {kind!r} has {', '.join(wanted)} of their types, got {table!r}"
        )
    return cls(**values)


def uniform_levels(x: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    return (x / scale).round().clamp(low, high) * scale


def token_levels(x: Tensor, bits: int) -> Tensor:  # BitNet b1.58, section 2
    top = 2 ** (bits - 1) - 1
    # The floor keeps a token of zeros from dividing by zero.
    scale = x.abs().amax(-1, keepdim=True).clamp(min=LEAST_RANGE) / top
    return (x / scale).round().clamp(-top - 1, top) * scale


def signs(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


class InputQuantizer(nn.Module):
    """What happens to a layer's input. `scales_output`: what it leaves out is given
    back behind the layer.
    """

    scales_output: bool = False

    def facts(self) -> InputFacts:
        raise NotImplementedError


class FixedInput(InputQuantizer):
    """As the facts say, without training. It adds nothing to the network's state dict."""

    scale: Tensor

    def __init__(self, facts: InputFacts) -> None:
        super().__init__()
        self._facts = facts
        self.scales_output = isinstance(facts, SignInput) and facts.scaled
        if isinstance(facts, UniformInput):
            # A buffer follows the module to its device; not persistent, so that the
            # state dict keeps the names of the plain network.
            self.register_buffer("scale", torch.tensor(facts.scale), persistent=False)

    def facts(self) -> InputFacts:
        return self._facts

    def forward(self, x: Tensor) -> Tensor:
        facts = self._facts
        if isinstance(facts, UniformInput):
            return uniform_levels(x, self.scale, facts.low, facts.high)
        return (
            token_levels(x, facts.bits) if isinstance(facts, TokenInput) else signs(x)
        )

    def extra_repr(self) -> str:
        return str(self._facts)


def quantizer_of(module: nn.Module) -> InputQuantizer | None:
    found = module._modules.get(_CHILD)
    assert found is None or isinstance(found, InputQuantizer)
    return found


def quantize_input(module: nn.Module, quantizer: InputQuantizer) -> None:
    """From now on the layer gets its input as the quantizer makes it."""
    # Hooks would otherwise pile up when a layer is quantized twice.
    leave_input(module)
    module.add_module(_CHILD, quantizer)
    module.register_forward_pre_hook(_quantize_input)
    module.register_forward_hook(_scale_output)


def leave_input(module: nn.Module) -> None:
    """The layer gets its input as it is again."""
    # Our hooks are module-level functions, so identity finds them even in a deep copy
    # of the layer.
    module._modules.pop(_CHILD, None)
    for hooks, ours in (
        (module._forward_pre_hooks, _quantize_input),
        (module._forward_hooks, _scale_output),
    ):
        for key in [key for key, hook in hooks.items() if hook is ours]:
            del hooks[key]


def facts_of(model: nn.Module) -> dict[str, dict[str, Any]]:
    """The facts of every layer with a quantized input, by its name."""
    found = {name: quantizer_of(module) for name, module in model.named_modules()}
    return {
        name: to_plain(quantizer.facts())
        for name, quantizer in found.items()
        if quantizer is not None
    }


def read_facts(table: object, model: nn.Module) -> dict[str, InputFacts]:
    """A file's facts, which must be about layers of this network."""
    if not isinstance(table, Mapping):
        raise ValueError(
            f"quantized inputs must be a table by the layer's name, got a {type(table).__name__}"
        )
    # Names from a file are only looked up, never called or imported.
    modules = dict(model.named_modules())
    for name in table:
        if not isinstance(modules.get(name), LAYERS):
            raise ValueError(
                f"the input of {name!r} is quantized, which is no linear or convolutional layer here"
            )
    return {name: from_plain(facts) for name, facts in table.items()}


def fix_inputs(model: nn.Module, facts: Mapping[str, InputFacts]) -> None:
    """Exactly these layers have quantized inputs from now on."""
    for name, module in model.named_modules():
        if quantizer_of(module) is not None:
            leave_input(module)
        if name in facts:
            # The scale must lie where the layer computes.
            held = next((p.device for p in module.parameters()), torch.device("cpu"))
            quantize_input(module, FixedInput(facts[name]).to(held))


# XNOR-Net, eq. 11: K = A * k
def output_factor(module: nn.Module, x: Tensor) -> Tensor:
    """For each place of the output the mean magnitude of the inputs it is summed from."""
    if isinstance(module, nn.Linear):
        return x.abs().mean(-1, keepdim=True)
    convolve = _CONVOLUTIONS[
        next(kind for kind in _CONVOLUTIONS if isinstance(module, kind))
    ]
    channel_dim = x.ndim - 1 - len(module.kernel_size)  # type: ignore[arg-type]
    # K is the mean over channels, then the mean over each window: a convolution with a
    # box of 1/(h · w).
    size: Any = module.kernel_size
    box = x.new_full((1, 1, *size), 1 / math.prod(size))
    mean = x.abs().mean(channel_dim, keepdim=True)
    given: Any = module
    return convolve(mean, box, None, given.stride, given.padding, given.dilation)


def _quantize_input(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if not args:
        raise ValueError(
            f"a {type(module).__name__} with a quantized input must be called as layer(x), got no positional input"
        )
    x, *others = args
    quantizer: Any = module._modules[_CHILD]
    if quantizer.scales_output:
        # Kept until `_behind`, because only here the real input is seen.
        module.__dict__[_FACTOR] = output_factor(module, x.detach())
    return (quantizer(x), *others)


def _scale_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    factor = module.__dict__.pop(_FACTOR, None)
    if factor is None:
        return output
    bias: Any = module.bias
    if bias is None:
        return output * factor
    # The bias was added to the sum of signs and must not be scaled with it.
    if not isinstance(module, nn.Linear):
        bias = bias.view(-1, *[1] * len(module.kernel_size))  # type: ignore[arg-type]
    return (output - bias) * factor + bias
