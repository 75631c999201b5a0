"""A width for each layer without running the network once for each choice: squared
gradients tell the damage, the coder tells the bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from tersify.calibration import Calibration, squared_gradients
from tersify.codec.small import DIRECTORY
from tersify.codec.writer import encoded
from tersify.lab.allocate import Choice, knapsack
from tersify.methods import Lookup, Method
from tersify.norm_shifts import follow_, moments_of
from tersify.norms_in_few_bits import coarse_norms
from tersify.recipe import Rule
from tersify.sites import find_sites
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.model import load_state, tied

NORM_BITS = 12
TRIES = 4  # tensors coded together take other bytes than one by one


def widths() -> list[Method]:
    """Tables of 3 to 8 bits, each weight counted by its squared gradient."""
    return [Lookup(n=n, fit="sensitivity") for n in (3, 4, 5, 6, 8)]


@dataclass(frozen=True)
class Estimate(Choice):
    """A choice with the tensor that it makes."""

    packed: CompressedTensor


def estimated(
    model: nn.Module,
    calibration: Calibration,
    methods: Sequence[Method],
    weights: str | tuple[str, ...] = "*",
) -> dict[str, list[Estimate]]:
    """For each weight of two dimensions or more, what each method costs in the file and
    how much it raises the loss, to second order.
    """
    rule = Rule(weights=weights, methods=tuple(methods[:1]))
    sites = [s for s in rule.reached(find_sites(model)) if s.latent.ndim >= 2]
    table: dict[str, list[Estimate]] = {}
    for site, matters in zip(
        sites, squared_gradients(model, sites, calibration), strict=True
    ):
        latent = site.latent.detach()
        known = replace(site, sensitivity=matters)
        table[site.name] = []
        for method in methods:
            if isinstance(method, Lookup) and latent.numel() < 2**method.n:
                continue
            packed = method.transform(known).pack(latent)
            error = packed.to_dense() - latent
            damage = float((matters * error.square()).double().sum())
            table[site.name].append(
                Estimate(method, _coded_bytes(packed), damage, packed)
            )
    return table


def _coded_bytes(tensor: CompressedTensor) -> int:
    """What its groups take in a file; all else is counted once for the whole file."""
    file = encoded({"weight": tensor})
    return sum(len(data) for name, data in file.sections.items() if name != DIRECTORY)


@torch.no_grad()
def within(
    model: nn.Module,
    calibration: Calibration,
    budget_bytes: int,
    *,
    weights: str | tuple[str, ...] = "*",
) -> tuple[nn.Module, CompressedModel]:
    """A copy of the network and its tensors, whose file takes at most `budget_bytes`: a
    width for each layer, batch norms and biases in few bits.
    """
    table = estimated(model, calibration, widths(), weights)
    limit = budget_bytes - _bytes_besides(model, table)
    over = 0
    for _ in range(TRIES):
        chosen = knapsack(table, limit).choices
        over = encoded(_filled(model, chosen)).size_bytes - budget_bytes
        if over <= 0:
            break
        limit -= over
    if over > 0:
        raise ValueError(
            f"the file stays {over:,} bytes above {budget_bytes:,}; give it more"
        )
    made, moments = copy.deepcopy(model), moments_of(model, calibration)
    parameters = dict(made.named_parameters())
    for name, choice in chosen.items():
        parameters[name].copy_(_packed(choice).to_dense())
    follow_(made, moments, calibration)
    packed = _filled(made, chosen)
    return load_state(packed, made), packed


def _filled(model: nn.Module, chosen: Mapping[str, Choice]) -> CompressedModel:
    """The network with the chosen weights, its norms in few bits."""
    tensors, aliases = tied(model.state_dict(keep_vars=True))
    plain = {
        name: _packed(chosen[name]) if name in chosen else tensor.detach()
        for name, tensor in tensors.items()
    }
    return coarse_norms(CompressedModel(plain, aliases=aliases), model, NORM_BITS)


def _packed(choice: Choice) -> CompressedTensor:
    assert isinstance(choice, Estimate)
    return choice.packed


def _bytes_besides(model: nn.Module, table: Mapping[str, list[Estimate]]) -> int:
    """The file without the weights that get a width."""
    rest = {name: t for name, t in model.state_dict().items() if name not in table}
    return encoded(coarse_norms(CompressedModel(rest), model, NORM_BITS)).size_bytes
