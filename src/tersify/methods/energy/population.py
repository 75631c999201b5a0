"""The population: the states of a search with their energies, and where the search
stands.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Population(nn.Module):
    """Everything that a search must remember between two batches."""

    states: Tensor  # (S, D), True where a unit is active
    energies: Tensor  # (S,), of the latest batch on which each state was judged
    revived: Tensor  # how often a layer without active units got one back

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.register_buffer("states", states)
        self.register_buffer(
            "energies",
            torch.zeros(len(states), dtype=torch.float32, device=states.device),
        )
        self.register_buffer(
            "revived", torch.zeros((), dtype=torch.int64, device=states.device)
        )
        self.judged = False
        self.searching = True

    def get_extra_state(self) -> dict[str, bool]:
        return {"judged": self.judged, "searching": self.searching}

    def set_extra_state(self, state: Any) -> None:
        self.judged, self.searching = state["judged"], state["searching"]

    def best(self) -> Tensor:
        # Indexing with a tensor of one number would wait for the device.
        return self.states.index_select(0, self.energies.argmin().view(1))[0]

    def spread(self) -> float:
        """|Δs|: how far the mean energy lies above the best (paper 4, eq. 7)."""
        return float(self.energies.mean() - self.energies.min())

    def diversity(self) -> float:
        """The fraction of units in which two states differ, over all pairs."""
        count = len(self.states)
        # Two states drawn independently differ in a unit with probability 2p(1 − p).
        # The factor S/(S − 1) leaves out the pairs of a state with itself.
        active = self.states.double().mean(0)
        return float((2 * active * (1 - active)).mean()) * count / (count - 1)
