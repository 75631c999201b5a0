"""What a session makes of a network: every parameter and buffer by its plain name,
compressed where methods are.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from tersify.methods import Site
from tersify.ranks import whole
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.inputs import METADATA, facts_of
from tersify.tensor.model import tied
from tersify.weight_views import Views, view_of


def pack_network(
    model: nn.Module,
    names: Sequence[str],
    sites: Sequence[Site],
    views: Views,
    *,
    recipe: str,
) -> CompressedModel:
    """`names` are those of the plain network, whatever else its state dict has now."""
    every = [*sites, *(follower.site for follower in views.followers)]
    latents = {
        name: site.latent for site in every for name in (site.name, *site.aliases)
    }
    state = model.state_dict(keep_vars=True)
    # Latents stand in for computed weights, since tied weights are told by identity.
    held, aliases = tied({n: latents[n] if n in latents else state[n] for n in names})
    made = {id(site.latent): pack_site(site) for site in sites}
    compressed: dict[int, CompressedTensor | Tensor] = {**made}
    for follower in views.followers:
        compressed[id(follower.site.latent)] = view_of(
            made[id(follower.leader.latent)], follower.index
        )
    packed = {
        n: compressed[id(t)] if id(t) in compressed else whole(t.detach()).clone()
        for n, t in held.items()
    }
    facts = facts_of(model)
    return CompressedModel(
        packed,
        aliases=aliases,
        recipe=recipe,
        metadata={METADATA: facts} if facts else None,
    )


def pack_site(site: Site) -> CompressedTensor:
    value: Tensor | CompressedTensor = whole(site.latent.detach())
    for transform in site.chain:
        value = transform.pack(value)
    assert isinstance(value, CompressedTensor)
    return value
