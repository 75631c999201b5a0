"""Shrunk networks and files: their codes stay codes, and a fresh module takes the
shapes of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tersify.shrinking.cutting import tell_sizes_
from tersify.shrinking.scattering import can_scatter, scatter_
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.model import GRAPH, tied
from tersify.tensor.origin import file_facts, origins_of, set_file_facts, set_origins
from tersify.units.attention import HeadAttention


def packed(
    model: nn.Module, metadata: Mapping[str, Any] | None = None
) -> CompressedModel:
    """A shrunk network for `tersify.save`: compressed tensors where `load` left them
    and nobody changed them since.
    """
    coded = origins_of(model)
    tensors, aliases = tied(model.state_dict(keep_vars=True))
    kept: dict[str, CompressedTensor | Tensor] = {}
    for name, tensor in tensors.items():
        code = coded.get(name)
        kept[name] = tensor.detach()
        if (
            code is not None
            and code.shape == tuple(tensor.shape)
            and torch.equal(code.to_dense(), tensor.cpu())
        ):
            kept[name] = code
    recipe, facts = file_facts(model)
    # it was that of the larger network
    known = {key: value for key, value in facts.items() if key != GRAPH}
    return CompressedModel(
        kept, aliases=aliases, recipe=recipe, metadata={**known, **(metadata or {})}
    )


def carry_codes_(
    small: nn.Module, model: nn.Module, kept: Mapping[str, Mapping[int, Tensor]]
) -> None:
    """What `load` left on the large module, cut like its tensors; codes that no longer
    fit are dropped.
    """
    state = small.state_dict()
    cut = {
        name: _cut_code(code, kept.get(name, {}))
        for name, code in origins_of(model).items()
        if name in state
    }
    same = {
        name: code
        for name, code in cut.items()
        if torch.equal(code.to_dense(), state[name].cpu())
    }
    set_origins(small, same)
    set_file_facts(small, *file_facts(model))


def _cut_code(code: CompressedTensor, kept: Mapping[int, Tensor]) -> CompressedTensor:
    for dim, rows in kept.items():
        codes = code.codes.index_select(dim, rows)
        values, codebook = code.values, code.codebook
        if values is not None:
            # Survivors lie in row-major order of the whole tensor, so they are spread
            # out before rows are taken, and gathered afterwards.
            dense = torch.zeros(code.shape, dtype=values.dtype).masked_scatter_(
                code.codes.bool(), values
            )
            values = dense.index_select(dim, rows)[codes.bool()]
        if codebook is not None and code.axis == dim:
            codebook = codebook.index_select(0, rows)
        scale, column_scale = (
            _cut_scale(each, len(code.shape), dim, rows)
            for each in (code.scale, code.column_scale)
        )
        code = replace(
            code,
            shape=tuple(codes.shape),
            codes=codes,
            values=values,
            codebook=codebook,
            scale=scale,
            column_scale=column_scale,
        )
    return code


def _cut_scale(
    scale: Tensor | None, dimensions: int, dim: int, rows: Tensor
) -> Tensor | None:
    if scale is None:
        return None
    # A scale broadcasts: aligned at the end, and 1 where it is the same for all.
    place = dim - (dimensions - scale.dim())
    return (
        scale.index_select(place, rows)
        if place >= 0 and scale.shape[place] > 1
        else scale
    )


@torch.no_grad()
def fit_(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """Give a fresh module the shapes of a shrunk one, so that its file loads into it.

    Layers only become smaller; names and numbers of dimensions stay. The weights are
    left to `load`.
    """
    # Order matters: attention is split first, then layers learn to scatter, then
    # tensors get their sizes under the names that exist by now.
    for name, module in list(model.named_modules()):
        if f"{name}.q_proj.weight" in shapes and HeadAttention.can_replace(module):
            assert isinstance(module, nn.MultiheadAttention)
            model.set_submodule(name, HeadAttention(module))
    for name, module in model.named_modules():
        source = shapes.get(f"{name}.source")
        if source is not None and _can_scatter_from(module, source):
            scatter_(module, torch.zeros(source, dtype=torch.int64))
    for prefix, module in model.named_modules():
        for store in (module._parameters, module._buffers):
            _cut_(store, prefix, shapes)
        tell_sizes_(module)
    return model


def _can_scatter_from(module: nn.Module, source: tuple[int, ...]) -> bool:
    # No wider than the layer was: a file must not choose how much memory this takes.
    if not can_scatter(module) or len(source) != 1:
        return False
    return source[0] <= _width(module)


def _cut_(
    store: dict[str, Any], prefix: str, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """The tensors of a module in the shapes that the file has for them."""
    for name, tensor in store.items():
        shape = shapes.get(f"{prefix}.{name}" if prefix else name)
        if tensor is None or shape is None or shape == tuple(tensor.shape):
            continue
        # Never larger than the user's own module: a file must not choose how much
        # memory this takes.
        is_smaller = len(shape) == tensor.dim() and all(
            mine <= theirs for mine, theirs in zip(shape, tensor.shape, strict=True)
        )
        if not is_smaller:
            raise ValueError(
                f"{prefix}.{name} has shape {shape} in the file and {tuple(tensor.shape)} in the module; "
                "a shrunk layer is smaller in every dimension, so this is another network"
            )
        cut = tensor.new_zeros(shape)
        if isinstance(tensor, nn.Parameter):
            cut = nn.Parameter(cut, tensor.requires_grad)
        store[name] = cut


def _width(module: nn.Module) -> int:
    weight = module.weight
    return len(weight) if isinstance(weight, Tensor) else 0
