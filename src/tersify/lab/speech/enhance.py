"""Speech through the network: magnitudes from the network, phases from the mixture."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tersify.lab.networks.speech import FRAMES
from tersify.lab.speech.integers import SAMPLE, fixed_speech
from tersify.lab.speech.spectrum import Framing, istft, stft
from tersify.runtime.fixed import Monitor
from tersify.tensor import CompressedTensor


def stacked(magnitudes: Tensor) -> Tensor:
    """(frames, 129) → (frames, 8, 129): each frame behind the seven before it; the
    first stands for what is missing.
    """
    padded = torch.cat([magnitudes[:1].expand(FRAMES - 1, -1), magnitudes])
    return padded.unfold(0, FRAMES, 1).transpose(1, 2)


@torch.inference_mode()
def enhance(model: nn.Module, noisy: Tensor, framing: Framing | None = None) -> Tensor:
    """The signal without (some of) its noise, of the same length."""
    if noisy.ndim != 1 or not len(noisy):
        raise ValueError(
            f"a signal must be one row of samples, got shape {tuple(noisy.shape)}"
        )
    framing = framing or Framing()
    spectra = stft(noisy, framing)
    magnitudes = spectra.abs()
    clean = model(stacked(magnitudes))
    # The noisy phase stays; the network gives magnitudes only (paper 2).
    return istft(spectra * (clean / magnitudes.clamp(min=1e-12)), len(noisy), framing)


def enhance_in_integers(
    model: Mapping[str, CompressedTensor | Tensor],
    noisy: Tensor,
    monitor: Monitor,
    *,
    head: str,
    window: int = 128,
    rounding: str = "half-up",
) -> Tensor:
    """The signal as the circuit would give it; `monitor` sees every node."""
    samples = noisy.double().numpy()
    speech = fixed_speech(
        model, head=head, window=window, rounding=rounding, sample=samples
    )
    return torch.from_numpy(SAMPLE.real(speech(samples, monitor))).float()
