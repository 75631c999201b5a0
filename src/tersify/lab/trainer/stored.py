"""Networks from files: a checkpoint's weights into a module, and the network a .terse file names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tersify import codec
from tersify.lab.networks import networks
from tersify.lab.targets import resolve_target


def load_weights(model: nn.Module, path: Path) -> nn.Module:
    """Fill `model` from a .terse, .safetensors or torch checkpoint; nothing in the file is executed."""
    if not path.is_file():
        raise ValueError(f"no weights at {path}; --weights names a .terse, .safetensors or torch file")
    state = _read_state(path)
    own = model.state_dict()
    # Old checkpoints have no batch counters; torch fills them in.
    missing = sorted(name for name in own.keys() - state.keys() if not name.endswith("num_batches_tracked"))
    extra = sorted(state.keys() - own.keys())
    wrong = [name for name, tensor in state.items() if name in own and tensor.shape != own[name].shape]
    if missing or extra or wrong:
        problem = (
            f"lacks {missing[0]!r}" if missing
            else f"has {extra[0]!r}, which the network lacks" if extra
            else f"has {wrong[0]!r} in shape {tuple(state[wrong[0]].shape)}, "
                 f"the network in {tuple(own[wrong[0]].shape)}"
        )  # fmt: skip
        raise ValueError(f"{path.name} does not fit {type(model).__name__}: it {problem}; check the target's options")
    model.load_state_dict(state)
    return model


def _read_state(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".terse":
        return codec.open(path).read().state_dict()
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise ValueError(
            f"{path} holds no plain weights ({type(error).__name__}); save a state dict, best as .safetensors"
        ) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise ValueError(f"{path} holds no state dict (name → tensor); save one, best as .safetensors")
    return state


def load_network(path: Path, *, target: str | None = None, options: Mapping[str, Any] | None = None) -> nn.Module:
    """The network of a .terse file, in eval mode.

    Without `target` the file's own metadata names it, and then only a reference network is built: a file
    from elsewhere must not choose which code runs here.
    """
    if target is None:
        stored = codec.open(path).metadata.get("target")
        name = stored.get("name") if isinstance(stored, dict) else None
        if name not in networks():
            raise ValueError(
                f"{path} names no reference network of ours (target {name!r}); say what it is with --target"
            )
        assert isinstance(stored, dict)
        target, options = name, stored.get("options") or {}
    return codec.load(path, into=resolve_target(target, **(options or {}))).eval()
