"""`tersify.shrink`: structured zeros become really smaller layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tersify.shrinking.cutting import cut_
from tersify.shrinking.dead import Departures
from tersify.tensor.model import PACKED_ATTRIBUTE
from tersify.units.attention import HeadAttention
from tersify.units.trace import Example, call_arguments, trace

TOLERANCE = 1e-4


def shrink(model: nn.Module, example: Example) -> nn.Module:
    """A new network without the units that always give 0, or that nobody reads; same outputs, smaller layers.

    A unit is a filter, neuron or attention head with its bias and batch norm. Where units meet in an addition they
    go together or stay. A unit that gives a constant goes where the next layer's bias can take its place. A layer
    that would lose all its units keeps one. `example` is what `model(example)` takes; the model is not changed.
    """
    traced = trace(model, example)
    departures = Departures(traced, traced.tensors)
    gone = departures.settle()
    small = traced.model
    vars(small).pop(PACKED_ATTRIBUTE, None)
    cut_(small, departures.kept(gone))
    _restore_whole_attention_(small, model)
    modes = {name: module.training for name, module in model.named_modules()}
    _check_same(model, small, example)
    for name, module in small.named_modules():
        module.training = modes.get(name, model.training)
    return small


def _restore_whole_attention_(small: nn.Module, model: nn.Module) -> None:
    """Attention that kept all its heads is nn.MultiheadAttention again, under its own names."""
    for name, module in list(small.named_modules()):
        if isinstance(module, HeadAttention):
            original = model.get_submodule(name)
            assert isinstance(original, nn.MultiheadAttention)
            if module.q_proj.out_features == original.embed_dim == module.q_proj.in_features:
                small.set_submodule(name, module.merged(original))


@torch.no_grad()
def _check_same(model: nn.Module, small: nn.Module, example: Example) -> None:
    args, kwargs = call_arguments(example)
    training = {module: module.training for module in model.modules()}
    try:
        wanted = tree_leaves(model.eval()(*args, **kwargs))
    finally:
        for module, mode in training.items():
            module.training = mode
    try:
        got = tree_leaves(small(*args, **kwargs))
    except RuntimeError as error:
        raise ValueError(
            f"{type(model).__name__} does not run with fewer units ({str(error).partition(chr(10))[0]}); its forward "
            "depends on their number, so prune other layers"
        ) from error
    for a, b in zip(wanted, got, strict=True):
        if isinstance(a, Tensor) and a.is_floating_point():
            assert (a - b).abs().max() <= TOLERANCE * a.abs().max().clamp(min=1e-3), "the shrunk network differs"


__all__ = ["shrink"]
