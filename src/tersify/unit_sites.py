"""Finds what belongs to a layer's output units: its bias, and the BatchNorm behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import fx, nn

from tersify.methods import Site, Units

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def with_units(model: nn.Module, sites: Sequence[Site], free: Sequence[Site]) -> list[Site]:
    """The sites with their units; their biases, γ and β are taken from `free`, the sites that no rule names.

    A weight has no units where it is tied, where its layer is none of `LAYERS` and where the layer gives the
    network's output: no unit of it may go.
    """
    graph = _traced(model)
    modules = dict(model.named_modules())
    calls: dict[nn.Module, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls.setdefault(modules[node.target], []).append(node)
    by_id = {id(site.latent): site for site in free}
    return [replace(site, units=_units(site, modules, calls, by_id)) for site in sites]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Not into modules without parameters either: they hold no layer, and may ask for sizes."""
        return super().is_leaf_module(m, module_qualified_name) or next(m.parameters(), None) is None


def _traced(model: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(model)
    except Exception as error:  # tracing runs the user's forward with stand-ins; anything may come of it
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"which layer follows which cannot be told for {type(model).__name__}, and a method that drops units must "
            f"know it: torch.fx cannot trace it ({type(error).__name__}: {why}); use a method that works by weight"
        ) from error


def _units(
    site: Site, modules: dict[str, nn.Module], calls: dict[nn.Module, list[fx.Node]], free: dict[int, Site]
) -> Units | None:
    layer, attribute = site.owners[0]
    uses = calls.get(layer, [])
    if len(site.owners) > 1 or attribute != "weight" or not isinstance(layer, LAYERS) or not uses:
        return None
    norm = _norm_behind(uses, modules, calls)
    if norm is not None and not all(id(p) in free for p in norm.parameters()):
        norm = None  # a rule of its own has γ or β, so the unit cannot be silenced there
    tails = uses if norm is None else calls[norm]
    if any(_reaches_output(node, modules) for node in tails):
        return None
    held = [layer.bias] if norm is None else [layer.bias, norm.weight, norm.bias]
    companions = tuple(free[id(p)] for p in held if p is not None and id(p) in free)
    size = sum(p.numel() for p in modules[""].parameters())
    return Units(count=len(site.latent), companions=companions, tail=layer if norm is None else norm, network_size=size)


def _norm_behind(
    uses: list[fx.Node], modules: dict[str, nn.Module], calls: dict[nn.Module, list[fx.Node]]
) -> nn.Module | None:
    """The BatchNorm that alone takes the layer's output, and takes nothing else."""
    found: set[nn.Module] = set()
    for node in uses:
        users = list(node.users)
        if len(users) != 1 or users[0].op != "call_module":
            return None
        found.add(modules[str(users[0].target)])
    norm = found.pop()
    fits = isinstance(norm, BATCH_NORMS) and norm.affine and len(calls[norm]) == len(uses)
    return norm if fits and not found else None


def _reaches_output(start: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a path leads to the network's output without another layer of weights on it."""
    seen, ahead = set(), list(start.users)
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "output":
            return True
        if node.op != "call_module" or not _mixes(modules[str(node.target)]):
            ahead += node.users
    return False


def _mixes(module: nn.Module) -> bool:
    return any(parameter.ndim >= 2 for parameter in module.parameters())
