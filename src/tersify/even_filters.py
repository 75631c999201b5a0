"""Filters of equal spread: batch norms take over what made filters differ in size, so
that one table of levels suits them all.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn

from tersify.units.operation_rules import operation_name
from tersify.units.trace import Example, trace

_CONVS = ("conv1d", "conv2d", "conv3d", "linear")
# Of the variance that ε alone would make: the rest stays for the variance itself.
_ROOM = 0.5


@torch.no_grad()
def even_filters_(model: nn.Module, example: Example) -> list[str]:
    """Divide each filter before a batch norm by its spread, and that norm's mean and
    deviation with it: the outputs in eval mode stay as they are, but for rounding.

    Without this, one large filter sets the scale of a table, and small filters get few
    of its levels. Returns the names of the weights that changed.

    Args:
        model: a module, in place.
        example: an input, as for `attach`.
    """
    traced = trace(model, example)
    own = model.state_dict(keep_vars=True)
    readers = Counter(name for node, name in traced.stored.items() for _ in node.users)
    changed = []
    for node in traced.graph.nodes:
        parts = _normed_layer(node, traced.stored)
        # A weight or a norm that is used twice has another reader, which would see the
        # change.
        if parts is None or any(
            name not in own or readers[name] > 1 for name in parts.values()
        ):
            continue
        _even_({part: own[name] for part, name in parts.items()}, _eps_of(node))
        changed.append(parts["weight"])
    return changed


def _normed_layer(node: fx.Node, stored: dict[fx.Node, str]) -> dict[str, str] | None:
    """The names of a layer's weight and bias and of the batch norm behind it; None
    where the norm is not all that reads the layer.
    """
    if operation_name(node) not in _CONVS or len(node.users) != 1:
        return None
    (norm,) = node.users
    if operation_name(norm) != "batch_norm" or norm.args[0] is not node:
        return None
    # Without running statistics the norm divides by each batch's own spread.
    if norm.args[3] is None or norm.args[4] is None:
        return None
    found: dict[str, Any] = {
        "weight": node.args[1],
        "bias": node.args[2] if len(node.args) > 2 else None,
        "running_mean": norm.args[3],
        "running_var": norm.args[4],
    }
    present = {part: each for part, each in found.items() if each is not None}
    if not all(each in stored for each in present.values()):
        return None
    return {part: stored[each] for part, each in present.items()}


def _eps_of(node: fx.Node) -> float:
    (norm,) = node.users
    return float(norm.args[7])  # type: ignore[arg-type]


def _even_(parts: dict[str, Tensor], eps: float) -> None:
    weight, mean, variance = (
        parts[part] for part in ("weight", "running_mean", "running_var")
    )
    spread = weight.flatten(1).double().square().mean(1).sqrt()
    spread = torch.where(spread > 0, spread, spread.amax().clamp(min=1e-30))
    total = variance.double() + eps
    # A common factor is free, and makes room for ε in every new variance.
    spread *= _ROOM * float(((total / eps).sqrt() / spread).amin()) if eps else 1.0
    weight.copy_(weight.double() / spread.view(-1, *[1] * (weight.ndim - 1)))
    mean.copy_(mean.double() / spread)
    variance.copy_(total / spread.square() - eps)
    if "bias" in parts:
        parts["bias"].copy_(parts["bias"].double() / spread)
