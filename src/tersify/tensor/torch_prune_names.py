"""The two names that torch.nn.utils.prune gives a weight, NAME_orig and NAME_mask, and
the one that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod

from tersify.tensor.compressed import CompressedTensor

if TYPE_CHECKING:
    from tersify.tensor.model import CompressedModel

ORIGINAL, MASK = "_orig", "_mask"
Fact = TypeVar("Fact")


def masked_stems(names: Iterable[str]) -> list[str]:
    """Each NAME of which both NAME_orig and NAME_mask are there."""
    known = set(names)
    stems = [name.removesuffix(ORIGINAL) for name in known if name.endswith(ORIGINAL)]
    return sorted(stem for stem in stems if stem + MASK in known)


def merge_torch_masks(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict with each pair NAME_orig, NAME_mask made one NAME: their product,
    and 0.0 where the mask is zero.
    """
    stems = set(masked_stems(state))
    merged: dict[str, Tensor] = {}
    for name, tensor in state.items():
        stem = name.removesuffix(ORIGINAL)
        if name != stem and stem in stems:
            mask = state[stem + MASK].to(tensor.dtype)
            # Not the product alone: NaN times 0 would stay NaN, and −1 times 0 be −0.0.
            merged[stem] = torch.where(mask != 0, tensor * mask, 0.0)
        elif not (name.endswith(MASK) and name.removesuffix(MASK) in stems):
            merged[name] = tensor
    return merged


def names_as_in(shapes: Mapping[str, Fact], own: Iterable[str]) -> dict[str, Fact]:
    """The shapes of a file under the names that a module uses, where only torch's masks
    make the difference.
    """
    own, made = set(own), dict(shapes)
    # The file has pairs where the module has plain weights, or the other way round.
    for stem in masked_stems(made):
        if stem in own:
            made[stem] = made.pop(stem + ORIGINAL)
            del made[stem + MASK]
    for stem in masked_stems(own):
        if stem in made:
            made[stem + ORIGINAL] = made[stem + MASK] = made.pop(stem)
    return made


def weights_as_in(packed: CompressedModel, into: nn.Module) -> CompressedModel:
    """The packed model under the names that `into` uses; itself where they differ in
    nothing.
    """
    from tersify.tensor.model import CompressedModel

    own = into.state_dict()
    named = {name: packed[name] for name in (*packed, *packed.aliases)}
    if names_as_in(named, own).keys() == named.keys():
        return packed
    merging = [stem for stem in masked_stems(named) if stem in own]
    pairs = {
        stem + part: _dense(named[stem + part])
        for stem in merging
        for part in (ORIGINAL, MASK)
    }
    made = {
        name: t for name, t in named.items() if name not in pairs
    } | merge_torch_masks(pairs)
    for stem in masked_stems(own):
        if stem in made:
            weight = _dense(made.pop(stem))
            made[stem + ORIGINAL] = weight
            # The mask is taken from the zeros, so a weight that merely was zero counts
            # as pruned. The product of both is the same.
            made[stem + MASK] = (weight != 0).to(own[stem + MASK].dtype)
    return CompressedModel(made, recipe=packed.recipe, metadata=packed.metadata)


def refresh_masked(module: nn.Module) -> None:
    """Weights that torch prunes are products it makes when the network runs; make them
    now.
    """
    for part in module.modules():
        # torch computes NAME = NAME_orig · NAME_mask in a hook before each forward, so
        # after loading the attribute is still the old product.
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, BasePruningMethod):
                setattr(part, hook._tensor_name, hook.apply_mask(part))


def _dense(tensor: CompressedTensor | Tensor) -> Tensor:
    return tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor
