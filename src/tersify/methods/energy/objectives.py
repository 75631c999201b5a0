"""What a sub-network is judged by: functions of logits and targets, low where the sub-network is good."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.userfile import load_function, names_function

Objective = Callable[[Tensor, Tensor], Tensor]


def margin(logits: Tensor, targets: Tensor) -> Tensor:
    """The best other class's logit minus the target's, for each sample (paper 4, eq. 3 with F = −ε)."""
    own = logits.gather(1, targets[:, None])
    others = logits.scatter(1, targets[:, None], float("-inf"))
    return others.amax(1) - own[:, 0]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none")


OBJECTIVES: dict[str, Objective] = {"margin": margin, "cross-entropy": cross_entropy}


def objective_of(given: str | Objective) -> Objective:
    """A ready objective by name, the function that `file.py:function` names, or the function itself."""
    if not isinstance(given, str):
        return given
    return load_function(given) if names_function(given) else OBJECTIVES[given]


def group_energies(objective: Objective, logits: Tensor, targets: Tensor, groups: int) -> Tensor:
    """The mean energy of each group, `logits` holding the groups one behind the other.

    An objective gives one energy for each sample, or their mean; the mean cannot be taken for all groups
    at once, so such a function is called for each group.
    """
    samples = len(targets)
    energies = objective(logits, targets.repeat(groups, *[1] * (targets.ndim - 1)))
    if isinstance(energies, Tensor) and energies.shape == (groups * samples,):
        return energies.view(groups, samples).mean(1)
    if isinstance(energies, Tensor) and energies.ndim == 0:
        return torch.stack([objective(own, targets) for own in logits.split(samples)])
    found = f"the shape {tuple(energies.shape)}" if isinstance(energies, Tensor) else f"a {type(energies).__name__}"
    raise ValueError(
        f"the objective must return one energy for each of the {groups * samples} samples, shape "
        f"({groups * samples},), or their mean, shape (), got {found}"
    )
