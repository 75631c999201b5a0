"""What a sub-network is judged by: functions of logits and targets, low where the
sub-network is good.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.userfile import load_function, names_function

Objective = Callable[[Tensor, Tensor], Tensor]


def margin(logits: Tensor, targets: Tensor) -> Tensor:
    """The best other class's logit minus the target's, for each sample (paper 4, eq. 3
    with F = −ε).
    """
    own = logits.gather(1, targets[:, None])
    # −∞ takes the target out of the maximum; the margin is negative where the answer is
    # right.
    others = logits.scatter(1, targets[:, None], float("-inf"))
    return others.amax(1) - own[:, 0]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none")


LEFT_OUT = -100  # the class number by which torch's cross-entropy leaves a sample out


def check_targets(objective: Objective, logits: Tensor, targets: Tensor) -> None:
    """What the ready objectives need. Waits for the device, where a wrong class would
    end the process.
    """
    if objective not in (margin, cross_entropy):
        return
    if logits.ndim != 2:
        raise ValueError(
            f"the network must return logits of shape (samples, classes), got {tuple(logits.shape)}"
        )
    samples, classes = len(targets), logits.shape[1]
    if (
        objective is cross_entropy
        and targets.is_floating_point()
        and targets.shape == (samples, classes)
    ):
        return  # the fraction of each class
    if (
        targets.is_floating_point()
        or targets.is_complex()
        or targets.dtype == torch.bool
        or targets.ndim != 1
    ):
        raise ValueError(
            f"targets must be one class number for each sample, whole numbers of shape ({samples},), got "
            f"{targets.dtype} of {tuple(targets.shape)}; give one-hot targets as targets.argmax(1)"
        )
    may_lack = objective is cross_entropy
    # `margin` gathers by class number, so it has no way to leave a sample out.
    judged = targets[targets != LEFT_OUT] if may_lack else targets
    if ((judged < 0) | (judged >= classes)).any():
        note = f" ({LEFT_OUT}: left out)" if may_lack else ""
        raise ValueError(
            f"targets must be classes 0..{classes - 1}{note}, got {int(judged.min())}..{int(judged.max())}"
        )


OBJECTIVES: dict[str, Objective] = {"margin": margin, "cross-entropy": cross_entropy}


def objective_of(given: str | Objective) -> Objective:
    """A ready objective by name, the function that `file.py:function` names, or the
    function itself.
    """
    if not isinstance(given, str):
        return given
    return load_function(given) if names_function(given) else OBJECTIVES[given]


def group_energies(
    objective: Objective, logits: Tensor, targets: Tensor, groups: int
) -> Tensor:
    """The mean energy of each group, `logits` holding the groups one behind the other.

    An objective gives one energy for each sample, or their mean; the mean cannot be
    taken for all groups at once, so such a function is called for each group.
    """
    # Logits are (groups · samples, classes); targets repeat for each group.
    samples = len(targets)
    energies = objective(logits, targets.repeat(groups, *[1] * (targets.ndim - 1)))
    if isinstance(energies, Tensor) and energies.shape == (groups * samples,):
        return energies.view(groups, samples).mean(1)
    if isinstance(energies, Tensor) and energies.ndim == 0:
        return torch.stack([objective(own, targets) for own in logits.split(samples)])
    found = (
        f"the shape {tuple(energies.shape)}"
        if isinstance(energies, Tensor)
        else f"a {type(energies).__name__}"
    )
    raise ValueError(
        f"the objective must return one energy for each of the {groups * samples} samples, shape "
        f"({groups * samples},), or their mean, shape (), got {found}"
    )
