"""A session over several ranks that each hold a part of the latents and masks (FSDP2)."""

from __future__ import annotations

from typing import Any

from torch import nn

from tersify import ranks
from tersify.methods import Lookup, Method, Prune, Site, Ternary
from tersify.methods.pruning.mask import MaskTransform
from tersify.session import Session


def shard_(session: Session, mesh: Any = None) -> None:
    """Spread the weights, latents and masks over the ranks, layer by layer. After
    attach, before the optimizer.

    What a method learns for a whole tensor (a scale, a table) stays on every rank;
    average its gradients with `reduce_unsharded_` before each step of the optimizer.
    For networks of linear layers, with the methods ternary, lookup and prune (single
    weights by magnitude, within each layer).
    """
    from torch.distributed.fsdp import fully_shard

    _check(session)
    for site in session.sites:
        for transform in site.chain:
            if isinstance(transform, MaskTransform):
                # FSDP spreads parameters and leaves buffers alone.
                mask = transform._buffers.pop("mask")
                assert mask is not None
                transform.register_parameter(
                    "mask", nn.Parameter(mask, requires_grad=False)
                )
    small = {
        parameter
        for site in session.sites
        for transform in site.chain
        for name, parameter in transform.named_parameters()
        if name != "mask"
    }
    for module in [m for m in session.model.modules() if isinstance(m, nn.Linear)]:
        fully_shard(module, mesh=mesh, ignored_params=small)
    # Last, for what no linear layer owns: FSDP takes the innermost module that was
    # named.
    fully_shard(session.model, mesh=mesh, ignored_params=small)
    for site in session.sites:
        _update_latent(site)


def reduce_unsharded_(model: nn.Module) -> None:
    """Average over the ranks the gradients that FSDP does not know of."""
    ranks.mean_over_ranks_(
        [
            # FSDP reduces the gradients of its shards itself; ignored parameters it
            # leaves alone.
            p.grad
            for p in model.parameters()
            if p.grad is not None and not ranks.is_sharded(p)
        ]
    )


def _update_latent(site: Site) -> None:
    """Sharding put another parameter in the latent's place."""
    module, attribute = site.owners[0]
    parametrizations: Any = module.parametrizations
    object.__setattr__(site, "latent", parametrizations[attribute].original)


def _check(session: Session) -> None:
    if not ranks.together():
        raise ValueError(
            "sharding needs a process group; start with torchrun, or call init_process_group first"
        )
    for method in session.methods:
        if not _can_shard(method):
            raise ValueError(
                f"{method.name!r} as set here decides by whole tensors and cannot be sharded; use data-parallel "
                "training, or ternary, lookup, or prune by the magnitude of single weights in each layer"
            )
    _check_layers(session.model)
    _check_sites(session)


def _check_layers(model: nn.Module) -> None:
    """FSDP cuts tensors by rows, which only a linear layer's product allows."""
    for name, module in model.named_modules():
        # The transforms of a session are modules too, and are sharded with their layer.
        if "parametrizations" in name.split("."):
            continue
        owns = next(module.parameters(recurse=False), None) is not None
        if owns and not isinstance(module, (nn.Linear, nn.LayerNorm)):
            raise ValueError(
                f"{name!r} is a {type(module).__name__}; only networks of linear layers can be sharded: "
                "use data-parallel training"
            )


def _check_sites(session: Session) -> None:
    """Each weight is one layer's own, and masks act on latents, which are sharded."""
    for follower in session.views.followers:
        raise ValueError(
            f"{follower.site.name!r} lies in the memory of another weight, and cannot be sharded"
        )
    for site in session.sites:
        if len(site.owners) > 1 or not isinstance(site.owners[0][0], nn.Linear):
            raise ValueError(
                f"{site.name!r} is tied or no weight of a linear layer, and cannot be sharded"
            )
        if any(isinstance(link, MaskTransform) for link in site.chain[1:]):
            raise ValueError(
                f"{site.name!r} is pruned behind another method; when sharded the pruner comes first"
            )


def _can_shard(method: Method) -> bool:
    if isinstance(method, Prune):
        plain = (method.score, method.structure, method.scope) == (
            "magnitude",
            "element",
            "layer",
        )
        return plain and method.schedule != "frozen"
    return isinstance(method, (Ternary, Lookup))
