"""Short-time spectra and back: Hann frames with half overlap, added up again without a
second window.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tersify.lab.networks.speech import BINS

RATE = 8000


@dataclass(frozen=True)
class Framing:
    """`window` samples, zero-padded to 256 points; the paper's is 128 (16 ms), 256 is
    the option.
    """

    window: int = 128

    def __post_init__(self) -> None:
        if self.window not in (128, 256):
            raise ValueError(
                f"the window must have 128 or 256 samples, got {self.window}"
            )

    @property
    def hop(self) -> int:
        return self.window // 2

    @property
    def points(self) -> int:
        return 2 * (BINS - 1)

    def analysis(self) -> Tensor:
        return torch.hann_window(self.window, periodic=True)

    def frames(self, samples: int) -> int:
        return -(-samples // self.hop) + 1


def stft(signal: Tensor, framing: Framing) -> Tensor:
    """(samples,) → (frames, 129) complex. Half a window of silence before and after, so
    every sample counts in full.
    """
    frames = framing.frames(len(signal))
    # Samples that the last frame lacks.
    missing = framing.hop * (frames + 1) - framing.hop - len(signal)
    padded = torch.nn.functional.pad(signal, (framing.hop, missing))
    return torch.fft.rfft(
        padded.unfold(0, framing.window, framing.hop) * framing.analysis(),
        n=framing.points,
    )


def istft(spectra: Tensor, samples: int, framing: Framing) -> Tensor:
    """Overlap-add: periodic Hann windows at half overlap sum to one, so an unchanged
    spectrum comes back exactly.
    """
    pieces = torch.fft.irfft(spectra, n=framing.points)
    length = framing.hop * (len(spectra) - 1) + framing.points
    added = torch.nn.functional.fold(
        pieces.T[None], (1, length), (1, framing.points), stride=(1, framing.hop)
    ).reshape(-1)
    return added[framing.hop : framing.hop + samples]
