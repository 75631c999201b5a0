"""STOI and SNR of a network over fixed mixtures, and paired differences between
networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from tersify.lab.speech.enhance import enhance
from tersify.lab.speech.mixtures import Mixture, snr_db
from tersify.lab.speech.spectrum import RATE, Framing


@dataclass(frozen=True)
class Scores:
    """One STOI and one SNR for each mixture."""

    stoi: tuple[float, ...]
    snr_db: tuple[float, ...]

    @property
    def mean_stoi(self) -> float:
        return float(np.mean(self.stoi))

    @property
    def mean_snr_db(self) -> float:
        return float(np.mean(self.snr_db))

    def minus(self, other: Scores) -> tuple[float, float]:
        """Mean paired difference of STOI and its standard error."""
        difference = np.subtract(self.stoi, other.stoi)
        # Paired: mixtures differ far more from each other than two networks do on one
        # of them.
        spread = float(difference.std(ddof=1)) if len(difference) > 1 else math.nan
        return float(difference.mean()), spread / math.sqrt(len(difference))


def score(
    model: nn.Module | None, mixtures: Sequence[Mixture], framing: Framing | None = None
) -> Scores:
    """The network's scores, or without one those of the mixtures themselves."""
    stois, snrs = [], []
    for mixture in mixtures:
        heard = (
            mixture.noisy if model is None else enhance(model, mixture.noisy, framing)
        )
        stois.append(stoi(mixture.clean, heard))
        snrs.append(snr_db(mixture.clean, heard))
    return Scores(tuple(stois), tuple(snrs))


def stoi(clean: Tensor, heard: Tensor) -> float:
    """Short-time objective intelligibility (Taal et al. 2010), as pystoi computes it."""
    try:
        from pystoi import stoi as measure
    except ImportError:
        raise ValueError(
            "STOI needs the package pystoi; pip install 'tersify[speech]'"
        ) from None
    return float(
        measure(
            clean.numpy().astype(np.float64), heard.numpy().astype(np.float64), RATE
        )
    )
