"""The range split's ratio and probabilities, searched on validation data; the paper
chose them on its test set.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from tersify.lab.speech.enhance import stacked
from tersify.lab.speech.mixtures import Corpus
from tersify.lab.speech.spectrum import Framing, stft
from tersify.methods import Lookup

RATIOS = (1.0, 2.0, 3.0)
TAILS = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08)
MIXTURES = 6


def search_split(start: Lookup, damage: Callable[[Lookup], float]) -> Lookup:
    """The method with the ratio and the symmetric tails that do the least damage."""
    tried = [
        replace(start, ratio=ratio, p_start=tail, p_stop=1 - tail)
        for ratio, tail in itertools.product(RATIOS, TAILS)
    ]
    return min(tried, key=damage)


def validation_frames(corpus: Corpus) -> Tensor:
    """Stacked noisy magnitudes of a few validation mixtures."""
    mixtures = corpus.listed("valid", MIXTURES)
    return torch.cat(
        [stacked(stft(mixture.noisy, Framing()).abs()) for mixture in mixtures]
    )


@torch.no_grad()
def output_error(model: nn.Module, reference: nn.Module, magnitudes: Tensor) -> float:
    """Mean squared difference of the two networks' roots of magnitudes: what STOI falls
    with, and quick.
    """
    return float(
        (model(magnitudes).sqrt() - reference(magnitudes).sqrt()).square().mean()
    )
