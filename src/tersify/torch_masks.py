"""Checkpoints of torch.nn.utils.prune: `weight_orig` and `weight_mask` in, and out
again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tersify.methods.pruning.mask import MaskTransform
from tersify.session import Session
from tersify.tensor.torch_prune_names import (
    MASK,
    ORIGINAL,
    masked_stems,
    merge_torch_masks,
)

__all__ = ["load_torch_masks", "merge_torch_masks", "torch_masks"]


@torch.no_grad()
def load_torch_masks(session: Session, state: Mapping[str, Tensor]) -> None:
    """Go on with a checkpoint of torch's pruning: its originals become the latents, its
    masks the session's.

    The session prunes the weights that the checkpoint has masks for, best with schedule
    = "frozen".
    """
    # no extra states
    state = {
        name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)
    }
    originals = {name: state[name + ORIGINAL] for name in masked_stems(state)}
    parts = {name + part for name in originals for part in (ORIGINAL, MASK)}
    values = {
        name: tensor for name, tensor in state.items() if name not in parts
    } | originals
    masks = _first_masks(session)
    targets = _targets(session)
    # Everything is checked before the first copy: a checkpoint that does not fit must
    # leave the session as it was.
    _check_pruned(session, originals, masks)
    _check_complete(values, targets)
    for name in originals:
        _check_shape(f"the mask of {name!r}", state[name + MASK], targets[name])
    for name, value in values.items():
        targets[name].copy_(value)
        if name in originals:
            masks[name].copy_(_mask(state, name))


def _check_pruned(
    session: Session, originals: Mapping[str, Tensor], masks: Mapping[str, Tensor]
) -> None:
    """What the checkpoint masks, the session prunes; a tied weight under all names."""
    for name in originals:
        if name not in masks:
            raise ValueError(
                f"the checkpoint masks {name!r}, which the recipe does not prune; add a rule for it"
            )
    for site in session.sites:
        names = (site.name, *site.aliases)
        told, left = (
            [n for n in names if n in originals],
            [n for n in names if n not in originals],
        )
        if told and left:
            raise ValueError(
                f"the checkpoint masks {told[0]!r} and not {left[0]!r}, which are one weight here; untie them"
            )


def _check_complete(
    values: Mapping[str, Tensor], targets: Mapping[str, Tensor]
) -> None:
    """The checkpoint has the network's tensors, in their shapes, and no others."""
    for name in values:
        if name not in targets:
            raise ValueError(
                f"the checkpoint holds {name!r}, which the network does not have"
            )
    for name, target in targets.items():
        if name not in values:
            raise ValueError(
                f"the checkpoint lacks {name!r}; it belongs to another network, or is a part of one"
            )
        _check_shape(repr(name), values[name], target)


@torch.no_grad()
def torch_masks(session: Session) -> dict[str, Tensor]:
    """A state dict as torch.nn.utils.prune leaves one: load it into a network that
    `prune.identity` was applied to.

    A pruned weight that several modules share is pruned in each of them.
    """
    masks = _first_masks(session)
    latents = _targets(session)
    packed = session.pack()
    state: dict[str, Tensor] = {}
    for name in session.names:
        tensor = packed[name]
        if name in masks:
            state[name + ORIGINAL] = latents[name].detach().clone()
            # torch.nn.utils.prune multiplies by the mask, so it has the weight's type.
            state[name + MASK] = masks[name].to(latents[name].dtype)
        elif isinstance(tensor, Tensor):
            state[name] = tensor
        else:
            raise ValueError(
                f"{name!r} is quantized, which a torch mask cannot say; export pruned weights only"
            )
    return state


def _targets(session: Session) -> dict[str, Tensor]:
    """Every tensor of the plain network under all its names: the latent where the
    session has one.
    """
    latents = {
        name: site.latent
        for site in session.sites
        for name in (site.name, *site.aliases)
    }
    own = session.model.state_dict(keep_vars=True)
    return {
        name: latents[name] if name in latents else own[name] for name in session.names
    }


def _first_masks(session: Session) -> dict[str, Tensor]:
    """The mask of each weight that is pruned and nothing else, under all its names."""
    return {
        name: link.mask
        for site in session.sites
        for name in (site.name, *site.aliases)
        if len(site.chain) == 1 and isinstance((link := site.chain[0]), MaskTransform)
    }


def _check_shape(what: str, found: Tensor, target: Tensor) -> None:
    if found.shape != target.shape:
        raise ValueError(
            f"{what} has shape {tuple(found.shape)} in the checkpoint and {tuple(target.shape)} in the network; "
            "the checkpoint belongs to another network"
        )


def _mask(state: Mapping[str, Tensor], name: str) -> Tensor:
    return state[name + MASK] != 0
