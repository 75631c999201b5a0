"""Finds what belongs to a layer's output units: its bias, the BatchNorm behind it, and where a silent one shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tersify.methods.base import Site, Units

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True, eq=False, kw_only=True)
class UnitSite(Site):
    """A weight whose rows make units.

    With the rows of a unit, its bias, γ and β at zero, the output of `tail` (the BatchNorm behind the layer, or the
    layer itself) is exactly zero there.
    """

    tail: nn.Module
    network_size: int  # parameters of the whole network, for shares of it


def with_units(model: nn.Module, sites: Sequence[Site], every: Sequence[Site], rows: int) -> list[Site]:
    """The sites with their units, then the biases, γ and β that belong to them; `rows` rows make one unit.

    A weight has no units where it is tied, where its layer is none of `LAYERS` and where the layer gives the
    network's output: no unit of it may go.
    """
    graph = _Graph(model)
    at = {place: site for site in every for place in site.owners}
    found: list[Site] = []
    companions: list[Site] = []
    for site in sites:
        layer, attribute = site.owners[0]
        known = isinstance(layer, LAYERS) and attribute == "weight" and len(site.owners) == 1
        if not known or not graph.may_lose_units(layer):
            found.append(site)
            continue
        if len(site.latent) % rows:
            raise ValueError(f"{site.name!r} has {len(site.latent)} rows, which are not units of {rows}; change rows")
        tail = graph.norm_behind(layer) or layer
        count = len(site.latent) // rows
        units = (Units(site.name, 0, torch.arange(count).repeat_interleave(rows), count),)
        found.append(_extended(site, units=units, tail=tail, network_size=sum(s.latent.numel() for s in every)))
        places = [(layer, "bias"), *([] if tail is layer else [(tail, "weight"), (tail, "bias")])]
        companions += [_extended(at[place], units=units, kind=Site) for place in places if place in at]
    return [*found, *companions]


def _extended(site: Site, kind: type[Site] = UnitSite, **facts: object) -> Site:
    own = {spec.name: getattr(site, spec.name) for spec in fields(Site)}
    return kind(**{**own, **facts})


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Not into modules without parameters either: they hold no layer, and may ask for sizes."""
        return super().is_leaf_module(m, module_qualified_name) or next(m.parameters(), None) is None


class _Graph:
    """Which module takes whose output, found without data by tracing the forward method."""

    def __init__(self, model: nn.Module) -> None:
        try:
            graph = _Tracer().trace(model)
        except Exception as error:  # tracing runs the user's forward with stand-ins; anything may come of it
            why = str(error).partition("\n")[0]
            raise ValueError(
                f"which layer follows which cannot be told for {type(model).__name__}, and a search that drops units "
                f"must know it: torch.fx cannot trace it ({type(error).__name__}: {why}); use a method that works "
                "by weight, such as 'prune'"
            ) from error
        self._modules = dict(model.named_modules())
        self._calls: dict[nn.Module, list[fx.Node]] = {}
        for node in graph.nodes:
            if node.op == "call_module":
                self._calls.setdefault(self._module(node), []).append(node)

    def _module(self, node: fx.Node) -> nn.Module:
        return self._modules[str(node.target)]

    def norm_behind(self, layer: nn.Module) -> nn.Module | None:
        """The BatchNorm with γ and β that alone takes the layer's output, and takes nothing else."""
        uses = self._calls.get(layer, [])
        takers = [user for node in uses for user in node.users]
        if not takers or any(node.op != "call_module" for node in takers):
            return None
        norm = self._module(takers[0])
        fits = isinstance(norm, _BatchNorm) and norm.affine and set(takers) == set(self._calls[norm])
        return norm if fits and len(takers) == len(uses) else None

    def may_lose_units(self, layer: nn.Module) -> bool:
        """Whether the layer is used, and every path from it to the output leads through another layer of weights."""
        tail = self.norm_behind(layer) or layer
        uses = self._calls.get(tail, [])
        return bool(uses) and not any(self._reaches_output(node) for node in uses)

    def _reaches_output(self, start: fx.Node) -> bool:
        seen: set[fx.Node] = set()
        ahead = list(start.users)
        while ahead:
            node = ahead.pop()
            if node.op == "output":
                return True
            mixes = node.op == "call_module" and any(p.ndim >= 2 for p in self._module(node).parameters())
            if node not in seen and not mixes:
                ahead += node.users
            seen.add(node)
        return False
