"""Which layer follows which in a network, told by torch.fx from its forward method."""

from __future__ import annotations

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Not into modules without parameters either: they hold no layer, and may ask
        for sizes.
        """
        return (
            super().is_leaf_module(m, module_qualified_name)
            or next(m.parameters(), None) is None
        )


class Graph:
    """Which module takes whose output, found without data by tracing the forward
    method.
    """

    def __init__(self, model: nn.Module) -> None:
        try:
            graph = _Tracer().trace(model)
        except Exception as error:
            # tracing runs the user's forward with stand-ins; anything may come of it
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

    def norm_behind(self, layer: nn.Module) -> _BatchNorm | None:
        """The BatchNorm with γ and β that alone takes the layer's output, and takes
        nothing else.
        """
        uses = self._calls.get(layer, [])
        # A layer that is called several times (shared weights) has several uses.
        takers = [user for node in uses for user in node.users]
        if not takers or any(node.op != "call_module" for node in takers):
            return None
        norm = self._module(takers[0])
        if not isinstance(norm, _BatchNorm) or not norm.affine:
            return None
        # Each use of the layer has one taker, and the norm is called nowhere else: else
        # its γ and β mean more.
        if len(takers) != len(uses) or set(takers) != set(self._calls[norm]):
            return None
        return norm

    def may_lose_units(self, layer: nn.Module) -> bool:
        """Whether the layer is used, and every path from it to the output leads through
        another layer of weights.
        """
        tail = self.norm_behind(layer) or layer
        uses = self._calls.get(tail, [])
        return bool(uses) and not any(map(self._reaches_output, uses))

    def _reaches_output(self, start: fx.Node) -> bool:
        seen: set[fx.Node] = set()
        ahead = list(start.users)
        while ahead:
            node = ahead.pop()
            if node.op == "output":
                return True
            # A module with a matrix mixes units, so whatever is behind it no longer
            # shows them one by one; a norm or an activation does.
            mixes = node.op == "call_module" and any(
                p.ndim >= 2 for p in self._module(node).parameters()
            )
            if node not in seen and not mixes:
                ahead += node.users
            seen.add(node)
        return False
