"""The paper's network, 8 stacked frames of 129 bins → 256 → 129, as it is or with a
mask or a spectrum at its end.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BINS = 129
FRAMES = 8
HIDDEN = 256
HEADS = ("mask", "spectrum", "magnitude")
FLOOR = 1e-3
MOST = 8.0  # the spectrum head moves no bin by more than this many nepers
# Heard speech is clearer with a gentler change than the one of least error (chosen on
# the validation mixtures).
STRENGTH = 0.6


class SpeechMlp(nn.Module):
    """Magnitudes of eight frames (N, 8, 129) → clean magnitudes of the last one (N,
    129).

    It sees logarithms, standardised per bin. The mask head scales the noisy magnitude
    by 0…1. The spectrum head gives the logarithm of the magnitude, relative to each
    bin's mean over the eight frames: so loudness need not pass through the network,
    while what happens in the last frame must. In eval mode the estimate is blended with
    the mixture, estimate^0.6 · noisy^0.4.

    The magnitude head is the paper's own network, with magnitudes in and out and a ReLU
    on each layer. It sees and gives their roots, over one unit for all bins, and its
    estimate stands as it is.
    """

    mean: Tensor
    spread: Tensor
    input_shape = (FRAMES, BINS)

    def __init__(self, head: str = "mask", dropout: float = 0.2) -> None:
        super().__init__()
        if head not in HEADS:
            raise ValueError(f"head must be one of {', '.join(HEADS)}, got {head!r}")
        self.head = head
        self.hidden = nn.Linear(FRAMES * BINS, HIDDEN)
        # The paper names no dropout for its own form.
        self.dropout = nn.Dropout(0.0 if head == "magnitude" else dropout)
        self.output = nn.Linear(HIDDEN, BINS)
        self.register_buffer("mean", torch.zeros(BINS))
        self.register_buffer("spread", torch.ones(BINS))

    @torch.no_grad()
    def standardise_(self, magnitudes: Tensor) -> None:
        """Take mean and spread of every bin from frames (N, 129); of roots their mean
        over all bins is the unit.
        """
        if self.head == "magnitude":
            self.spread.fill_(magnitudes.sqrt().mean())
            return
        logs = magnitudes.clamp(min=FLOOR).log()
        self.mean.copy_(logs.mean(0))
        self.spread.copy_(logs.std(0))

    def features(self, magnitudes: Tensor) -> Tensor:
        if self.head == "magnitude":
            return (magnitudes.sqrt() / self.spread).flatten(1)
        logs = magnitudes.clamp(min=FLOOR).log()
        return ((logs - self.mean) / self.spread).flatten(1)

    def forward(self, magnitudes: Tensor) -> Tensor:
        hidden = self.dropout(torch.relu(self.hidden(self.features(magnitudes))))
        raw = self.output(hidden)
        if self.head == "magnitude":
            return (torch.relu(raw) * self.spread).square()
        logs = magnitudes.clamp(min=FLOOR).log()
        if self.head == "mask":
            change = torch.nn.functional.logsigmoid(raw)
        else:
            # Relative to the last frame's own logarithm, since the result is multiplied
            # by its magnitude below.
            change = logs.mean(1) - logs[:, -1] + raw.clamp(-MOST, MOST)
        return torch.exp((1.0 if self.training else STRENGTH) * change) * magnitudes[
            :, -1
        ].clamp(min=FLOOR)


def speech_mlp(*, head: str = "mask") -> nn.Module:
    return SpeechMlp(head)
