"""Finds what belongs to a layer's output units: its bias, the BatchNorm behind it, and
where a silent one shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from tersify.methods.base import Network, Site, Units
from tersify.methods.energy.gates import spread_index
from tersify.methods.layer_graph import Graph

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True, eq=False)
class Outlet:
    """A module whose output holds the units along `dim`: where a unit is silent, it is
    exactly zero there.
    """

    module: nn.Module
    dim: int
    unit: Tensor | None  # for each index its unit, or -1; None where unit i is index i


@dataclass(frozen=True, eq=False, kw_only=True)
class UnitSite(Site):
    """A weight that makes units, which its layer alone, or several layers together,
    give to the others.
    """

    outlets: tuple[Outlet, ...]
    network_size: int  # parameters of the whole network, for fractions of it
    is_covered: bool = False  # γ and β behind it silence its units too


def gather_units(
    sites: Sequence[Site], network: Network, *, rows: int, coupled: bool
) -> list[Site]:
    """The sites with their units, then the biases, γ and β that belong to them.

    A weight has no units where none of them may go, as in the layer that gives the
    network's output.
    """
    return (
        _coupled(sites, network) if coupled else _layer_by_layer(sites, network, rows)
    )


def _layer_by_layer(sites: Sequence[Site], network: Network, rows: int) -> list[Site]:
    """Each convolution and linear layer by itself; `rows` rows make one unit."""
    graph = Graph(network.model)
    at = {place: site for site in network.sites for place in site.owners}
    found: list[Site] = []
    companions: list[Site] = []
    for site in sites:
        layer, attribute = site.owners[0]
        known = (
            isinstance(layer, LAYERS)
            and attribute == "weight"
            and len(site.owners) == 1
        )
        if not known or not graph.may_lose_units(layer):
            found.append(site)
            continue
        if len(site.latent) % rows:
            raise ValueError(
                f"{site.name!r} has {len(site.latent)} rows, which are not units of {rows}; change rows"
            )
        norm = graph.norm_behind(layer)
        # Unit i is rows i·rows … (i + 1)·rows − 1 of the weight.
        count = len(site.latent) // rows
        units = Units(site.name, 0, torch.arange(count).repeat_interleave(rows), count)
        # Units are silenced behind the norm: in front of it, β would give them a value
        # again.
        tail = norm or layer
        outlet = Outlet(
            tail,
            -1 if isinstance(tail, nn.Linear) else 1,
            spread_index(units.unit, count, site.latent),
        )
        found.append(
            _extended(
                site,
                UnitSite,
                units=(units,),
                outlets=(outlet,),
                network_size=_size(network),
                is_covered=norm is not None,
            )
        )
        places = [
            (layer, "bias"),
            *([] if norm is None else [(norm, "weight"), (norm, "bias")]),
        ]
        companions += [
            _extended(at[place], units=(units,)) for place in places if place in at
        ]
    return [*found, *companions]


def _coupled(sites: Sequence[Site], network: Network) -> list[Site]:
    """Units as the whole calculation tells them: what meets in an addition goes
    together; heads too.
    """
    if network.units is None:
        raise ValueError(
            "coupled units are found by following an example; give attach(…, example=inputs)"
        )
    wanted = {site.name for site in sites}
    by_name = {site.name: site for site in network.sites}
    modules = dict(network.model.named_modules())
    made: dict[str, Site] = {}
    for group in network.units:
        if not wanted.intersection(member.name for member in group.producers):
            continue
        known = [outlet for outlet in group.carriers if outlet.module in modules]
        outlets = tuple(
            Outlet(
                modules[c.module],
                c.dim,
                spread_index(c.unit, group.size, _first(network)),
            )
            for c in known
        )
        for member in (*group.producers, *group.followers):
            # buffers of statistics may stay
            if member.name in by_name and member.name not in made:
                units = (Units(group.name, member.dim, member.unit, group.size),)
                made[member.name] = _extended(
                    by_name[member.name],
                    UnitSite,
                    units=units,
                    network_size=_size(network),
                    outlets=outlets if len(known) == len(group.carriers) else (),
                )
    # The rule's own sites first, in its order; what is left in `made` goes along with
    # them.
    own = [made.pop(site.name, site) for site in sites]
    return [*own, *made.values()]


def _first(network: Network) -> Tensor:
    return network.sites[0].latent


def _size(network: Network) -> int:
    return sum(site.latent.numel() for site in network.sites)


def _extended(site: Site, kind: type[Site] = Site, **facts: object) -> Site:
    own = {spec.name: getattr(site, spec.name) for spec in fields(Site)}
    return kind(**{**own, **facts})
