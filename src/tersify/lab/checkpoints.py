"""The state dict in a file, however training scripts wrap it and name its tensors."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tersify import codec
from tersify.tensor.attached_names import plain_weights

COMPILED = "_orig_mod."  # where torch.compile wrapped a module


def read_state(path: Path, max_decoded_bytes: int) -> dict[str, Tensor]:
    """The tensors of a .terse, .safetensors or torch file by name; nothing in it is
    executed.
    """
    from tersify.torch_masks import merge_torch_masks

    if path.suffix == ".terse":
        return codec.open(path, max_decoded_bytes=max_decoded_bytes).read().state_dict()
    try:
        if path.suffix == ".safetensors":
            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise ValueError(
            f"{path} holds no plain weights ({type(error).__name__}); save a state dict, best as .safetensors"
        ) from error
    return merge_torch_masks(plain_weights(_unwrapped(state, path)))


def _unwrapped(state: Any, path: Path) -> dict[str, Tensor]:
    """Training scripts often put the weights beside an optimizer, under a name of their
    own.
    """
    if _is_state(state):
        return dict(state)
    inner = (
        {name: value for name, value in state.items() if value and _is_state(value)}
        if isinstance(state, dict)
        else {}
    )
    if "state_dict" in inner:
        return dict(inner["state_dict"])
    if len(inner) > 1:
        raise ValueError(
            f"{path} holds several state dicts ({', '.join(map(repr, inner))}); save the one that is meant"
        )
    if not inner:
        raise ValueError(
            f"{path} holds no state dict (name → tensor); save one, best as .safetensors"
        )
    return dict(next(iter(inner.values())))


def _is_state(given: Any) -> bool:
    return isinstance(given, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor)
        for name, tensor in given.items()
    )


def named_as(own: Collection[str], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state under the network's `own` names, where a wrapper put its own before all
    of them: DDP's `module.`, torch.compile's `_orig_mod.`, Lightning's attribute.
    """
    found = state
    if not any(COMPILED in name for name in own):
        found = {name.replace(COMPILED, ""): t for name, t in state.items()}
    while found and not found.keys() & set(own):
        wrappers = {name.partition(".")[0] for name in found}
        if len(wrappers) > 1 or not all("." in name for name in found):
            return state  # other names altogether
        found = {name.partition(".")[2]: tensor for name, tensor in found.items()}
    return found
