"""Noisy speech made deterministically from folders of speech and noise."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tersify.lab.speech import audio

SNRS_DB = (0.0, 5.0)


@dataclass(frozen=True)
class Mixture:
    clean: Tensor
    noisy: Tensor


def mix(speech: Tensor, noise: Tensor, snr_db: float, offset: int) -> Mixture:
    """Speech plus noise at a ratio of mean powers; the noise is looped from `offset`
    and cut to the speech.
    """
    if not len(speech) or not len(noise):
        raise ValueError(
            f"speech and noise must not be empty, got {len(speech)} and {len(noise)} samples"
        )
    part = noise.roll(-offset).repeat(-(-len(speech) // len(noise)))[: len(speech)]
    powers = speech.square().mean(), part.square().mean()
    if min(powers) == 0:
        raise ValueError(
            "speech or noise is silent, so it has no signal-to-noise ratio; leave the file out"
        )
    # Power ratios become a ratio of amplitudes by the root.
    gain = (powers[0] / powers[1] * 10 ** (-snr_db / 10)).sqrt()
    return Mixture(speech, speech + gain * part)


@dataclass(frozen=True)
class Corpus:
    """A folder with `speech/SPLIT` and `noise/SPLIT`, and lists of fixed mixtures for
    valid and test where it has them.

    Without `mixtures_SPLIT.csv`, a split's mixtures are drawn as training draws them,
    from its name.
    """

    root: Path

    def __post_init__(self) -> None:
        if not (self.root / "speech").is_dir() or not (self.root / "noise").is_dir():
            raise ValueError(
                f"{str(self.root)!r} must hold the folders speech and noise, each with train, valid and test"
            )

    def files(self, part: str, split: str) -> list[str]:
        found = [
            p
            for p in sorted((self.root / part / split).glob("*"))
            if p.suffix in (".flac", ".wav")
        ]
        if not found:
            raise ValueError(
                f"{str(self.root / part / split)!r} holds no .flac or .wav files"
            )
        return [str(p.relative_to(self.root)) for p in found]

    def listed(self, split: str, count: int | None = None) -> list[Mixture]:
        """The fixed mixtures of a split, or the first `count` of them."""
        path = self.root / f"mixtures_{split}.csv"
        if not path.is_file():
            return list(self.drawn(split, 0))[:count]
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))[:count]
        return [
            mix(
                self.signal(row["speech"]),
                self.signal(row["noise"]),
                float(row["snr_db"]),
                int(row["offset"]),
            )
            for row in rows
        ]

    def drawn(self, split: str, epoch: int, seed: int = 1) -> Iterator[Mixture]:
        """One mixture for each speech file, with noise, level and offset drawn from
        seed + epoch.
        """
        draw = np.random.default_rng(seed + epoch)
        noises = self.files("noise", split)
        for name in self.files("speech", split):
            noise = self.signal(noises[draw.integers(len(noises))])
            yield mix(
                self.signal(name),
                noise,
                float(draw.choice(SNRS_DB)),
                int(draw.integers(len(noise))),
            )

    def signal(self, name: str) -> Tensor:
        return _read_once(self.root / name)


@lru_cache(maxsize=2048)
def _read_once(path: Path) -> Tensor:
    return audio.read(path)


def snr_db(clean: Tensor, other: Tensor) -> float:
    """How far `other` is from `clean`, as a ratio of powers in dB."""
    error = (other - clean).square().mean().clamp(min=1e-20)
    return float(10 * torch.log10(clean.square().mean() / error))
