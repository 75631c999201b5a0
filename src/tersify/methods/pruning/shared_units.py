"""Which tensors share their filters, neurons, channels or heads, so that a unit goes
from all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from tersify.methods.base import Network, Site, Units
from tersify.methods.layer_graph import Graph
from tersify.methods.pruning.heads import head_groups, names_of
from tersify.units import UnitGroup

Members = list[tuple[str, Units]]  # the names of sites, and their parts in a group


def with_units(structure: str, sites: Sequence[Site], network: Network) -> list[Site]:
    """The sites with their units, then those that lose a filter's bias, γ or β with it."""
    own = {site.name for site in sites}
    roles: dict[str, list[Units]] = {}
    for members in _groups(structure, sites, network):
        for name, units in members:
            roles.setdefault(name, []).append(
                # A tensor outside the rule goes along, but the rule's own weights
                # decide.
                replace(units, scored=units.scored and name in own)
            )
    if not roles:
        raise ValueError(
            f"none of the weights {_shown(sites)} has a {structure} that can go; "
            f"{_reason(structure, sites, network)}; choose another structure or other weights"
        )
    behind = [
        site for site in network.sites if site.name in roles and site.name not in own
    ]
    return [
        replace(site, units=tuple(roles.get(site.name, ())))
        for site in (*sites, *behind)
    ]


_HOMES = {
    "filter": "filters are the outputs of convolutions",
    "neuron": "neurons are the outputs of linear layers",
    "row": "rows are the outputs of any layer",
    "channel": "channels are the inputs of convolutions",
    "head": "heads are found in nn.MultiheadAttention and beside query, key and value layers",
}


def _reason(structure: str, sites: Sequence[Site], network: Network) -> str:
    """Where such units are found, or what keeps those that are there."""
    some = any(_has(structure, site.owners[0][0]) for site in sites)
    if structure == "head" or network.units is None or not some:
        return _HOMES[structure]
    # A norm over several channels takes the silent ones into its mean and variance.
    for name, module in network.model.named_modules():
        if isinstance(module, (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)):
            return f"{type(module).__name__} ({name!r}) reads several channels together"
    return "what reads their outputs needs all of them, or they are the network's own"


def _groups(
    structure: str, sites: Sequence[Site], network: Network
) -> Iterator[Members]:
    if network.units is not None and structure in ("filter", "neuron", "head"):
        yield from _traced(
            structure, sites, network.units, {site.name for site in network.sites}
        )
    elif structure == "head":
        for heads in head_groups(sites, network):
            yield [*heads.items()]
    else:
        yield from _paired(structure, sites, network)


def _traced(
    structure: str, sites: Sequence[Site], groups: Sequence[UnitGroup], known: set[str]
) -> Iterator[Members]:
    """Units as the calculation itself tells them: what meets in an addition goes
    together.
    """
    wanted = {site.name for site in sites}
    for group in groups:
        if group.kind == structure and any(
            member.name in wanted for member in group.producers
        ):
            # The columns that read a head go with it; a filter's readers see zeros as
            # it is.
            readers = group.consumers if structure == "head" else ()
            yield [
                (
                    m.name,
                    Units(
                        group.name,
                        m.dim,
                        m.unit,
                        group.size,
                        scored=m.role == "producer",
                    ),
                )
                for m in (*group.producers, *group.followers, *readers)
                if m.name in known  # parameters; running statistics may stay
            ]


def _paired(
    structure: str, sites: Sequence[Site], network: Network
) -> Iterator[Members]:
    """Without an example: each layer by itself, with its bias and, where that can be
    told, the batch norm behind it.
    """
    graph = None if structure == "channel" else _traced_graph(network.model)
    names = names_of(network.sites)
    for site in sites:
        owner, attribute = site.owners[0]
        if site.latent.ndim < 2 or not _has(structure, owner):
            continue
        if (
            structure != "channel"
            and isinstance(owner, _ConvTransposeNd)
            and owner.groups > 1
        ):
            continue  # a slice of its weight belongs to one filter in every group
        # Outputs lie along dimension 0 of a weight and inputs along 1; a transposed
        # convolution stores them the other way round.
        dim = int((structure == "channel") != isinstance(owner, _ConvTransposeNd))
        count = site.latent.shape[dim]
        members = [(site.name, Units(site.name, dim, torch.arange(count), count))]
        if structure != "channel":
            along: list[tuple[nn.Module, str]] = [
                (owner, attribute.replace("weight", "bias"))
            ]
            norm = graph.norm_behind(owner) if graph is not None else None
            # Of a grouped or reshaped output the norm has another number of features,
            # and its γ would not match the filters.
            if norm is not None and norm.num_features == count:
                along += [(norm, "weight"), (norm, "bias")]
            for place in along:
                if name := names.get(place):
                    members.append(
                        (
                            name,
                            Units(
                                site.name, 0, torch.arange(count), count, scored=False
                            ),
                        )
                    )
        yield members


def _has(structure: str, owner: nn.Module) -> bool:
    if structure in ("filter", "channel"):
        return isinstance(owner, _ConvNd)
    return structure == "row" or isinstance(owner, nn.Linear)


def _traced_graph(model: nn.Module) -> Graph | None:
    try:
        return Graph(model)
    except ValueError:
        # it cannot be traced: better a constant behind a silent filter than another
        # layer's γ gone
        return None


def _shown(sites: Sequence[Site]) -> str:
    names = [repr(site.name) for site in sites[:3]]
    return ", ".join(names) + (f" and {len(sites) - 3} more" if len(sites) > 3 else "")
