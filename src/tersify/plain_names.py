"""A checkpoint written while a session is at work has the plain weights, as the network
uses them, beside the latents.

So `from_pretrained` and `load_state_dict(…, strict=False)` of a plain network find what
they look for. A checkpoint of plain weights alone cannot be loaded into a network at
work, whose latents it does not have; that is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tersify.methods import Transform
from tersify.modes import eval_mode
from tersify.ranks import is_sharded


def install_plain_names(model: nn.Module) -> list[Any]:
    """The hooks that write and skip the plain names; `remove()` takes each off again.

    They ask the module they are called with, and nobody else: a deep copy has its own
    weights.
    """
    return [
        model.register_state_dict_post_hook(_write),
        model.register_load_state_dict_pre_hook(_skip),
    ]


def without_plain_names(
    model: nn.Module, state: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What is stored, without what can be computed from it."""
    plain = {plain for plain, *_ in _compressed(model)}
    return {name: tensor for name, tensor in state.items() if name not in plain}


def _compressed(model: nn.Module) -> Iterator[tuple[str, str, nn.Module, str]]:
    """Plain name, latent's name, owner and attribute of each compressed weight."""
    # A module that is used under two names has two entries in a state dict.
    for prefix, module in model.named_modules(remove_duplicate=False):
        if not parametrize.is_parametrized(module):
            continue
        chains: Any = module.parametrizations
        for attribute, chain in chains.items():
            if any(isinstance(link, Transform) for link in chain):
                start = f"{prefix}." if prefix else ""
                latent = f"{start}parametrizations.{attribute}.original"
                yield f"{start}{attribute}", latent, module, attribute


@torch.no_grad()
def _write(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any
) -> None:
    for plain, latent, owner, attribute in _compressed(module):
        if prefix + latent not in state or is_sharded(state[prefix + latent]):
            continue  # of a shard each rank has a part of the latent only
        with eval_mode(owner):  # the chain is a part of it
            state[prefix + plain] = getattr(owner, attribute).detach().clone()


def _skip(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for plain, latent, *_rest in _compressed(module):
        if prefix + plain not in state:
            continue
        if prefix + latent not in state:
            raise ValueError(
                f"the checkpoint has the plain weight {prefix + plain!r} and not the latent behind it, which a network "
                "in a session needs; load it before attach, or give one that was written in a session"
            )
        del state[prefix + plain]
