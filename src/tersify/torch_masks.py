"""Checkpoints of torch.nn.utils.prune: `weight_orig` and `weight_mask` in, and out again."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tersify.methods.prune_mask import MaskTransform
from tersify.session import Session

ORIGINAL, MASK = "_orig", "_mask"


def merge_torch_masks(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict with each pair NAME_orig, NAME_mask made one NAME, zero where the mask is."""
    merged: dict[str, Tensor] = {}
    for name, tensor in state.items():
        stem = name.removesuffix(ORIGINAL)
        if name != stem and stem + MASK in state:
            merged[stem] = torch.where(_mask(state, stem), tensor, 0.0)
        elif not (name.endswith(MASK) and name.removesuffix(MASK) + ORIGINAL in state):
            merged[name] = tensor
    return merged


@torch.no_grad()
def load_torch_masks(session: Session, state: Mapping[str, Tensor]) -> None:
    """Go on with a checkpoint of torch's pruning: its originals become the latents, its masks the session's.

    The session prunes the weights that the checkpoint has masks for, best with schedule = "frozen".
    """
    masks = _first_masks(session)
    originals = [name.removesuffix(ORIGINAL) for name in state if name.endswith(ORIGINAL)]
    masked = [name for name in originals if name + MASK in state]
    for name in masked:
        if name not in masks:
            raise ValueError(f"the checkpoint masks {name!r}, which the recipe does not prune; add a rule for it")
        if masks[name].shape != state[name + MASK].shape:
            raise ValueError(
                f"the mask of {name!r} has shape {tuple(state[name + MASK].shape)}, and the weight "
                f"{tuple(masks[name].shape)}; the checkpoint belongs to another network"
            )
    latents = {site.name: site.latent for site in session.sites}
    merged = merge_torch_masks(state)
    own = session.model.state_dict(keep_vars=True)
    for name, tensor in merged.items():
        if name in masked:
            latents[name].copy_(state[name + ORIGINAL])
            masks[name].copy_(_mask(state, name))
        elif name in latents:
            latents[name].copy_(tensor)
        elif name in own:
            own[name].copy_(tensor)
        else:
            raise ValueError(f"the checkpoint holds {name!r}, which the network does not have")


@torch.no_grad()
def torch_masks(session: Session) -> dict[str, Tensor]:
    """A state dict as torch.nn.utils.prune leaves one: load it into a network that `prune.identity` was applied to."""
    masks = _first_masks(session)
    latents = {site.name: site.latent for site in session.sites}
    state: dict[str, Tensor] = {}
    for name, tensor in session.pack().items():
        if name in masks:
            state[name + ORIGINAL] = latents[name].detach().clone()
            state[name + MASK] = masks[name].to(latents[name].dtype)
        elif isinstance(tensor, Tensor):
            state[name] = tensor
        else:
            raise ValueError(f"{name!r} is quantized, which a torch mask cannot say; export pruned weights only")
    return state


def _first_masks(session: Session) -> dict[str, Tensor]:
    """The mask of each weight that is pruned and nothing else."""
    return {
        site.name: link.mask
        for site in session.sites
        if len(site.chain) == 1 and isinstance((link := site.chain[0]), MaskTransform)
    }


def _mask(state: Mapping[str, Tensor], name: str) -> Tensor:
    return state[name + MASK] != 0
