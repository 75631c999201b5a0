"""`pack`: any network or state dict as a packed model, each weight in the smallest form
that is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tersify.codec.detect import detect
from tersify.codec.duplicates import equal_tensors
from tersify.codec.views import Same, seen
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.attached_names import is_in_session, plain_weights
from tersify.tensor.model import tied
from tersify.tensor.torch_prune_names import merge_torch_masks


def pack(model: nn.Module | Mapping[str, CompressedTensor | Tensor]) -> CompressedModel:
    """Find out what the weights of a network are, however they came about: few levels,
    rows of few levels, zeros.

    Nothing is rounded: `pack(model).state_dict()` has the bits of the model's own.
    Weights that torch.nn.utils.prune masks, and those of a session, are packed as the
    network uses them, under their plain names. What a mask leaves out is 0.0 in them,
    where torch's product may have −0.0, or NaN of a weight that is not finite.

    Args:
        model: a module, or its state dict.
    """
    state = model.state_dict(keep_vars=True) if isinstance(model, nn.Module) else model
    if not isinstance(state, Mapping):
        raise ValueError(
            f"pack takes a network or its state_dict(), got a {type(state).__name__}"
        )
    if is_in_session(state):
        state = plain_weights(state)
    _check_tensors(state)
    dense = {
        name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)
    }
    merged = merge_torch_masks(dense)
    # No masks of torch's pruning: the state as it is, with its own aliases and
    # metadata.
    if merged.keys() == dense.keys():
        return packed_losslessly(state)
    others = {n: t for n, t in state.items() if n not in dense}
    return packed_losslessly(others | merged)


def packed_losslessly(
    model: Mapping[str, CompressedTensor | Tensor],
) -> CompressedModel:
    """The same names and bits, with each dense tensor in its smallest form."""
    return packed_once(model)[0]


def packed_once(
    model: Mapping[str, CompressedTensor | Tensor], *, half: bool = False
) -> tuple[CompressedModel, dict[str, Same]]:
    """The model packed losslessly, and which tensors have the content of others; `half`
    rounds 32-bit floats to 16 first.
    """
    _check_tensors(model)
    tensors, more = tied(dict(model))  # type: ignore[arg-type]
    aliases = {
        alias: more.get(name, name)
        for alias, name in getattr(model, "aliases", {}).items()
    }
    made = {
        name: _smallest(name, tensor, half=half) for name, tensor in tensors.items()
    }
    found = {name for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    same = equal_tensors(made, found=found)
    # A view has the codes of what it views, in memory as in the file.
    for name in found & same.keys():
        other = same[name]
        shape = tuple(made[name].shape)
        made[name] = seen(made[other.name], shape, turned=other.turned)
    packed = CompressedModel(
        made,
        aliases=aliases | more,
        recipe=getattr(model, "recipe", None),
        metadata=getattr(model, "metadata", None),
    )
    return packed, same


def halved(tensor: Tensor, name: str) -> Tensor:
    made = tensor.half()
    # Rounding to infinity is the one error of fp16 that no tolerance covers.
    if not torch.equal(made.isinf(), tensor.isinf()):
        raise ValueError(
            f"{name!r} has values beyond ±65504, the range of fp16; save with floats='as-is'"
        )
    return made


def _smallest(
    name: str, tensor: CompressedTensor | Tensor, *, half: bool
) -> CompressedTensor | Tensor:
    if isinstance(tensor, CompressedTensor):
        return tensor
    if half and tensor.dtype == torch.float32:
        # A product of a level and a scale would not have the rounded bits.
        return detect(halved(tensor.detach(), name).float(), scales=False)
    return detect(tensor)


def _check_tensors(model: Mapping[str, object]) -> None:
    for name, tensor in model.items():
        if not isinstance(name, str):
            raise ValueError(f"tensor names are text, got {name!r}")
        if not isinstance(tensor, (CompressedTensor, Tensor)):
            raise ValueError(
                f"{name!r} must be a CompressedTensor or a Tensor, got {type(tensor).__name__}"
            )
        if isinstance(tensor, Tensor) and (problem := _no_plain_numbers(tensor)):
            raise ValueError(f"{name!r} {problem}")


def _no_plain_numbers(tensor: Tensor) -> str | None:
    """Why a tensor cannot be stored, and what can."""
    if is_lazy(tensor):
        return "has no shape yet; run the network once"
    if tensor.is_meta:
        return "is on the device meta and has no numbers; load them first"
    if tensor.is_nested:
        return "is a nested tensor; give its parts, as tensor.unbind() has them"
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"has the layout {layout}; give tensor.to_dense()"
    if tensor.is_quantized:
        return f"has torch's own {tensor.dtype} with a scale; give tensor.dequantize()"
    return None
