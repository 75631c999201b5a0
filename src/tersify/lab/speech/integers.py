"""The whole speech enhancer in integers, from samples to samples: spectra, features,
network, gains, spectra.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tersify.lab.networks.speech import BINS, FLOOR, FRAMES, HEADS, MOST, STRENGTH
from tersify.runtime.fixed.cordic import Cordic
from tersify.runtime.fixed.fft import FixedFft
from tersify.runtime.fixed.fixed_network import FixedNetwork, fixed_network
from tersify.runtime.fixed.fixed_point import (
    Format,
    Ints,
    Monitor,
    quantize,
    shift_right,
)
from tersify.tensor import CompressedTensor

POINTS = 256
SAMPLE = Format(width=16, fraction=15)
WINDOW = Format(width=16, fraction=15, signed=False)
GUARD = 8  # more fraction bits inside the transform, where 1/256 comes off
SPECTRUM = Format(width=26, fraction=15)
LOG_FRACTION, LOG_TABLE_BITS = 12, 8
SLOPE = Format(width=18, fraction=12)
GAIN = Format(width=26, fraction=14, signed=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class FixedSpeech:
    """Made by `fixed_speech` from a compressed speech-mlp; `head` is mask or spectrum."""

    network: FixedNetwork
    head: str
    slope: Ints
    offset: Ints
    window: int = 128
    rounding: str = "half-up"
    fft: FixedFft = field(default_factory=FixedFft)
    cordic: Cordic = field(default_factory=Cordic)

    def __call__(
        self, samples: npt.NDArray[np.floating], monitor: Monitor | None = None
    ) -> Ints:
        """Real samples in (−1, 1) → enhanced samples, 16-bit integers of fraction 15."""
        monitor = monitor or Monitor()
        magnitude, phase, logs = self.polar(samples, monitor)
        raw = self.network(self.stacks(logs, monitor), monitor)
        gain = monitor.see("gain", self.gains(logs, raw), GAIN)
        # Fractions add in a product: the shift takes those of the gain off again.
        cleaner = shift_right(magnitude * gain, GAIN.fraction, self.rounding)
        cleaner = monitor.see("enhanced magnitude", cleaner, SPECTRUM)
        return self.synthesise(
            *self.cordic.rectangular(cleaner, phase), len(samples), monitor
        )

    def inputs(
        self, samples: npt.NDArray[np.floating], monitor: Monitor | None = None
    ) -> Ints:
        """What the network sees of a signal: a row of 8 · 129 integers for each frame."""
        monitor = monitor or Monitor()
        return self.stacks(self.polar(samples, monitor)[2], monitor)

    def polar(
        self, samples: npt.NDArray[np.floating], monitor: Monitor
    ) -> tuple[Ints, Ints, Ints]:
        """Magnitude, phase and the magnitude's logarithm, (frames, 129) each."""
        if samples.ndim != 1 or not len(samples):
            raise ValueError(
                f"a signal must be one row of samples, got shape {samples.shape}"
            )
        re, im = self.analyse(quantize(samples, SAMPLE, monitor, "samples"), monitor)
        magnitude, phase = self.cordic.polar(re, im)
        magnitude = monitor.see("magnitude", magnitude, SPECTRUM)
        return (
            magnitude,
            phase,
            log2(np.maximum(magnitude, round(FLOOR * 2**SPECTRUM.fraction))),
        )

    def stacks(self, logs: Ints, monitor: Monitor) -> Ints:
        return _stacked(
            monitor.see("features", self.features(logs), self.network.input)
        )

    def analyse(self, signal: Ints, monitor: Monitor) -> tuple[Ints, Ints]:
        """Windowed frames through the FFT, the first 129 bins of each; 1/256 of it
        comes off in the stages.
        """
        hop = self.window // 2
        frames = -(-len(signal) // hop) + 1
        padded = np.pad(signal, (hop, hop * frames - len(signal)))
        rows = np.lib.stride_tricks.sliding_window_view(padded, self.window)[::hop]
        # The periodic Hann window: shifted by half of its length, copies sum to one.
        hann = quantize(
            0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window),
            WINDOW,
            monitor,
            "window",
        )
        windowed = shift_right(rows * hann, WINDOW.fraction - GUARD, self.rounding)
        windowed = np.pad(windowed, ((0, 0), (0, POINTS - self.window)))
        re, im = self.fft(windowed, np.zeros_like(windowed), monitor)
        return re[:, :BINS], im[:, :BINS]

    def features(self, logs: Ints) -> Ints:
        """Standardised logarithms: a slope times log2 of the magnitude, plus an offset,
        for each bin, to 8 bits.
        """
        # The product has both fractions; what remains is that of the network's input.
        shift = LOG_FRACTION + SLOPE.fraction - self.network.input.fraction
        return shift_right(logs * self.slope + self.offset, shift, self.rounding)

    def gains(self, logs: Ints, raw: Ints) -> Ints:
        """What each magnitude is multiplied by: the last layer's answer through a table
        of 256 words, then 2^x.

        The mask head's table holds the answer's logarithm; the spectrum head adds its
        answer to the bin's mean level over the eight frames.
        """
        answers = list(self.network.layers.values())[-1].output.real(
            np.arange(-128, 128)
        )
        change = (
            -np.log1p(np.exp(-answers))
            if self.head == "mask"
            else np.clip(answers, -MOST, MOST)
        )
        table = np.rint(STRENGTH * change / np.log(2) * 2**LOG_FRACTION).astype(
            np.int64
        )
        power = table[raw + 128]
        if self.head == "spectrum":
            padded = np.concatenate([np.repeat(logs[:1], FRAMES - 1, axis=0), logs])
            sums = np.lib.stride_tricks.sliding_window_view(padded, FRAMES, axis=0).sum(
                -1
            )
            strength = round(STRENGTH * 2**LOG_FRACTION)
            # A shift by 3 more divides the sum by the eight frames.
            power = power + shift_right(
                (sums - FRAMES * logs) * strength, LOG_FRACTION + 3, self.rounding
            )
        return exp2(power)

    def synthesise(self, re: Ints, im: Ints, samples: int, monitor: Monitor) -> Ints:
        """The inverse FFT without shifts (the forward one has divided already), and
        overlap-add.
        """
        # A real signal's spectrum is symmetric: bins 127…1 follow bin 128 with
        # conjugate signs.
        mirrored = re[:, -2:0:-1], im[:, -2:0:-1]
        whole = (
            np.concatenate([re, mirrored[0]], axis=1),
            np.concatenate([im, -mirrored[1]], axis=1),
        )
        back = replace(
            self.fft, width=self.fft.width + 2, shifts=(0,) * self.fft.stages
        )
        pieces, _ = back.inverse(*whole, monitor)
        hop = self.window // 2
        added = np.zeros(hop * (len(pieces) - 1) + POINTS, np.int64)
        for number, piece in enumerate(pieces):
            added[number * hop : number * hop + POINTS] += piece
        return monitor.see(
            "output",
            shift_right(added[hop : hop + samples], GUARD, self.rounding),
            SAMPLE,
        )


def log2(values: Ints) -> Ints:
    """log2 of positive integers with 12 fraction bits: the leading one, and a table for
    what follows it.
    """
    whole = np.floor(np.log2(values.astype(np.float64))).astype(np.int64)
    # The eight bits behind the leading one index the table.
    below = np.where(
        whole >= LOG_TABLE_BITS,
        values >> np.maximum(whole - LOG_TABLE_BITS, 0),
        values << np.maximum(LOG_TABLE_BITS - whole, 0),
    ) - (1 << LOG_TABLE_BITS)
    mantissas = np.log2(
        1 + (np.arange(1 << LOG_TABLE_BITS) + 0.5) / (1 << LOG_TABLE_BITS)
    )
    table = np.rint(mantissas * 2**LOG_FRACTION).astype(np.int64)
    return (whole << LOG_FRACTION) + table[below]


def exp2(powers: Ints) -> Ints:
    """2^x for x with 12 fraction bits, as a gain of 14: a table for the fraction, a
    shift for the rest.
    """
    whole, rest = powers >> LOG_FRACTION, powers & ((1 << LOG_FRACTION) - 1)
    steps = (np.arange(1 << LOG_TABLE_BITS) + 0.5) / (1 << LOG_TABLE_BITS)
    table = np.rint(2.0**steps * 2**GAIN.fraction).astype(np.int64)
    values = table[rest >> (LOG_FRACTION - LOG_TABLE_BITS)]
    return np.where(
        whole >= 0, values << np.clip(whole, 0, 20), values >> np.clip(-whole, 0, 40)
    )


def fixed_speech(
    model: Mapping[str, CompressedTensor | Tensor],
    *,
    head: str,
    window: int = 128,
    rounding: str = "half-up",
    sample: npt.NDArray[np.floating] | None = None,
) -> FixedSpeech:
    """The integer enhancer of a compressed speech-mlp; `sample` is a typical signal,
    for the points of activations.
    """
    if head not in HEADS:
        raise ValueError(f"head must be {' or '.join(HEADS)}, got {head!r}")
    if window not in (128, 256):
        raise ValueError(f"the window must have 128 or 256 samples, got {window}")
    if missing := {"mean", "spread"} - set(model):
        raise ValueError(
            f"the model has no {' and no '.join(sorted(missing))}; only the network speech-mlp hears sound"
        )
    mean, spread = (_real(model[name]) for name in ("mean", "spread"))
    # ln(magnitude) = (log2(integer) − fraction) · ln 2
    slope = np.log(2) / spread
    offset = -mean / spread - SPECTRUM.fraction * slope
    draft = FixedSpeech(
        network=fixed_network(model, rounding=rounding),
        head=head,
        window=window,
        rounding=rounding,
        fft=FixedFft(rounding=rounding),
        cordic=Cordic(rounding=rounding),
        slope=quantize(slope, SLOPE, name="slope"),
        offset=np.rint(offset * 2 ** (LOG_FRACTION + SLOPE.fraction)).astype(np.int64),
    )
    if sample is None:
        return draft
    stack = draft.network.input.real(draft.inputs(sample))
    return replace(draft, network=fixed_network(model, rounding=rounding, sample=stack))


@dataclass(frozen=True, eq=False)
class Heard:
    """A network whose points were set by a sound, and some of the sound's frames as it
    sees them.
    """

    network: FixedNetwork
    frames: Ints
    of: int  # frames that the sound has
    monitor: Monitor


def hear(
    model: Mapping[str, CompressedTensor | Tensor],
    samples: npt.NDArray[np.floating],
    *,
    head: str,
    frames: int,
    rounding: str,
) -> Heard:
    """At most `frames` of them, spread evenly over the sound."""
    speech = fixed_speech(model, head=head, rounding=rounding, sample=samples)
    monitor = Monitor()
    every = speech.inputs(samples, monitor)
    chosen = (
        np.linspace(0, len(every) - 1, min(max(frames, 0), len(every)))
        .round()
        .astype(np.int64)
    )
    return Heard(speech.network, every[chosen], len(every), monitor)


def _real(tensor: CompressedTensor | Tensor) -> npt.NDArray[np.float64]:
    dense = tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor
    return dense.detach().cpu().double().numpy()


def _stacked(features: Ints) -> Ints:
    """(frames, 129) → (frames, 8 · 129): each frame behind the seven before it."""
    padded = np.concatenate([np.repeat(features[:1], FRAMES - 1, axis=0), features])
    views = np.lib.stride_tricks.sliding_window_view(padded, FRAMES, axis=0)
    return views.transpose(0, 2, 1).reshape(len(features), -1)
