"""Sound files as mono 8 kHz, read with soundfile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tersify.codec.atomic import replacing
from tersify.lab.speech.spectrum import RATE


def read(path: str | Path) -> Tensor:
    """(samples,) at 8 kHz. Channels are averaged and other rates resampled; an empty
    file is an error.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"no sound file at {str(file)!r}")
    soundfile = _soundfile()
    try:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(
            f"{str(file)!r} is no sound file that libsndfile reads ({error})"
        ) from None
    if not len(samples):
        raise ValueError(f"{str(file)!r} holds no samples")
    mono = samples.mean(axis=1)
    if rate != RATE:
        mono = _resampled(mono, rate)
    if not np.isfinite(mono).all():
        raise ValueError(f"{str(file)!r} holds samples that are not finite")
    return torch.from_numpy(mono)


def conversions(path: str | Path) -> str:
    """What `read` changes in a file, in brackets for a message; nothing where it is
    mono at 8 kHz.
    """
    info = _soundfile().info(str(path))
    changes = [f"{info.channels} channels averaged"] * (info.channels > 1)
    changes += [f"resampled from {info.samplerate} Hz"] * (info.samplerate != RATE)
    return f" ({', '.join(changes)})" if changes else ""


def write(path: str | Path, signal: Tensor) -> int:
    """16-bit mono at 8 kHz; the number of samples beyond full scale, which are clipped."""
    clipped = int((signal.abs() > 1).sum())
    kind = Path(path).suffix.lstrip(".").upper() or "WAV"
    soundfile = _soundfile()
    if kind not in soundfile.available_formats():
        raise ValueError(
            f"{str(path)!r} ends in no format that libsndfile writes; name it .wav"
        )
    with replacing(path) as file:
        soundfile.write(
            file, signal.clamp(-1, 1).numpy(), RATE, subtype="PCM_16", format=kind
        )
    return clipped


def _resampled(mono: npt.NDArray[np.float32], rate: int) -> npt.NDArray[np.float32]:
    try:
        from scipy.signal import resample_poly
    except ImportError:
        raise ValueError(
            f"sound at {rate} Hz is resampled to {RATE} by the package scipy; pip install 'tersify[speech]'"
        ) from None
    return resample_poly(mono, RATE, rate).astype(np.float32)


def _soundfile() -> Any:
    try:
        import soundfile
    except ImportError:
        raise ValueError(
            "reading sound needs the package soundfile; pip install 'tersify[speech]'"
        ) from None
    return soundfile
