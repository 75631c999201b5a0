"""Weights that lie in the memory of other weights, such as `W` and `W.T`: they follow
the one that they are part of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.methods import Site, Transform
from tersify.sites import install, uninstall
from tersify.tensor import CompressedTensor
from tersify.tensor.memory import Sharing, find_sharing


@dataclass(frozen=True, eq=False)
class Follower:
    """A weight all of whose numbers are numbers of `leader`: those at `index` of it,
    flattened.
    """

    site: Site
    leader: Site
    index: Tensor
    trained: bool  # by itself, before it followed


class Following(Transform):
    """Gives the leader's compressed weight in the follower's shape, so that both stay
    the same numbers.
    """

    index: Tensor

    def __init__(self, leader: Site, index: Tensor) -> None:
        super().__init__()
        # in a tuple: the leader's module is no part of this one
        self._leader = leader.owners[0]
        self.register_buffer("index", index, persistent=False)

    def forward(self, latent: Tensor) -> Tensor:
        module, attribute = self._leader
        weight: Tensor = getattr(module, attribute)
        # Through the module, so the gradient flows to the leader's latent.
        return weight.flatten()[self.index]


class Views:
    """Which sites of a network lead, and which follow."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._by_name = {site.name: site for site in sites}
        self._sharing: Sharing = find_sharing(
            {site.name: site.latent for site in sites}
        )
        self.leading = [site for site in sites if site.name not in self._sharing.views]
        self.followers: list[Follower] = []

    def check(self, treated: Iterable[Site]) -> None:
        """Weights that a method changes must be whole by themselves."""
        names = {site.name for site in treated}
        # expand() gives one number many places: writing one writes all of them.
        for name in self._sharing.folded:
            if name in names:
                raise ValueError(
                    f"{name!r} has several entries in one place of memory, as expand() makes them, and no method can "
                    "set them one by one; give the network a clone of it"
                )
        for first, second in self._sharing.overlaps:
            if first in names or second in names:
                raise ValueError(
                    f"{first!r} and {second!r} share a part of their memory, so one cannot be compressed without "
                    "changing the other; clone one of them, or leave both to a rule without methods"
                )

    def follow_(self, treated: Iterable[Site]) -> None:
        """Views of weights that a method changes become whatever these become."""
        leaders = {site.name: site for site in treated}
        for name, view in self._sharing.views.items():
            if view.of in leaders:
                site, leader = self._by_name[name], leaders[view.of]
                index = view.index.to(leader.latent.device)
                self.followers.append(
                    Follower(site, leader, index, site.latent.requires_grad)
                )
                install(site, Following(leader, index))
                site.latent.requires_grad_(False)  # its gradient goes to the leader

    @torch.no_grad()
    def release_(self) -> None:
        """The followers are plain weights again; those whose memory has moved away get
        their leader's numbers.
        """
        for follower in self.followers:
            uninstall(follower.site)
            latent = follower.site.latent
            value = follower.leader.latent.detach().flatten()[
                follower.index.to(latent.device)
            ]
            if not torch.equal(latent, value):
                latent.copy_(value)
            latent.requires_grad_(follower.trained)
        self.followers = []


def view_of(packed: CompressedTensor, index: Tensor) -> CompressedTensor | Tensor:
    """The compressed weight of a follower: codes with the leader's levels, or dense
    where levels vary by place.
    """
    index = index.to(packed.codes.device)
    shape, codes, scale = (
        tuple(index.shape),
        packed.codes.flatten()[index],
        packed.scale,
    )
    scales = [each for each in (scale, packed.column_scale) if each is not None]
    if (
        packed.axis is not None
        or len(scales) > 1
        or any(each.numel() > 1 for each in scales)
    ):
        # Several scales or codebook rows lie along the leader's dimensions, which a
        # view may cut in any way.
        return packed.to_dense().flatten()[index]
    scale = None if scale is None else scale.reshape(())
    if packed.codebook is not None:
        return CompressedTensor(
            shape=shape,
            codes=codes,
            codebook=packed.codebook,
            scale=scale,
            format=packed.format,
        )
    kept = torch.zeros(packed.shape, dtype=packed.dtype, device=codes.device)
    assert packed.values is not None
    kept.masked_scatter_(packed.codes.bool(), packed.values)
    return CompressedTensor(
        shape=shape,
        codes=codes,
        values=kept.flatten()[index][codes.bool()],
        scale=scale,
    )
