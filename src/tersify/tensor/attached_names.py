"""What a session leaves in a state dict: beside each plain weight, which the network
uses, the latent behind it and whatever else its method keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from torch import nn

STATE = "tersify_session"  # where the session stands, in checkpoints of other trainers
_PARTS, _LATENT = "parametrizations.", ".original"
Kept = TypeVar("Kept")


def is_in_session(names: Collection[str]) -> bool:
    """Whether a session wrote these names; torch's own parametrizations leave no plain
    one.
    """
    return any(_weight_of(name) in names for name in names if name.endswith(_LATENT))


def plain_weights(state: Mapping[str, Kept]) -> dict[str, Kept]:
    """The state dict of the plain network, where the state was written in a session."""
    if not is_in_session(state):
        return dict(state)
    return {
        name: value
        for name, value in state.items()
        if _weight_of(name) not in state and name.rpartition(".")[2] != STATE
    }


def refuse_session(model: nn.Module, remedy: str) -> None:
    """A network in a session has latents in place of its weights."""
    if is_in_session(model.state_dict()):
        raise ValueError(
            f"the network is in a session, which has latents in place of its weights; {remedy}"
        )


def _weight_of(name: str) -> str:
    """The plain name of the weight to which a part of a session belongs; none of
    another.
    """
    layer, parts, rest = name.rpartition(_PARTS)
    return layer + rest.partition(".")[0] if parts else ""
