"""Weights of which a method left nothing: a layer that passes nothing on cannot be
trained back to life, so it is told as soon as it is seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from tersify.methods import Site
from tersify.packed_network import pack_site
from tersify.ranks import whole
from tersify.tensor.measures import zero_count


class EmptiedWeights:
    """Those that were told already are not told again."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, sites: Iterable[Site], *, stacklevel: int) -> None:
        """Warn of the sites that became all zero; `stacklevel` as for `warnings.warn`,
        seen from the caller.
        """
        found = [
            site.name
            for site in sites
            if site.name not in self._told and _is_emptied(site)
        ]
        if not found:
            return
        self._told.update(found)
        some = ", ".join(map(repr, found[:3])) + (" and more" if len(found) > 3 else "")
        warnings.warn(
            f"every number of {some} became zero, so nothing passes through any more; ask for fewer zeros, "
            "or give such weights a rule of their own",
            stacklevel=stacklevel + 1,
        )


def _is_emptied(site: Site) -> bool:
    # A bias of zeros harms nobody; a network without memory has no numbers.
    if site.latent.ndim < 2 or site.latent.is_meta:
        return False
    packed = pack_site(site)
    return (
        zero_count(packed) == packed.numel() > 0
        # one that is born with zeros, as some last layers are, can learn
        and bool(whole(site.latent.detach()).any())
    )
