"""Networks written here: those of the lab, and small ones of kinds that people write
themselves.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from folded_modules import (
    DualPath,
    FoldedVideo,
    SelfAttention,
    SmallGTCRN,
    WindowAttention,
)
from torch import Tensor, nn

from tersify.lab import network


class UNet(nn.Module):
    """Two levels down, two up, with transposed convolutions and the finer level
    concatenated.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def block(i: int, o: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(i, o, 3, padding=1, bias=False),
                nn.BatchNorm2d(o),
                nn.ReLU(inplace=True),
            )

        self.down = nn.ModuleList([block(3, width), block(width, 2 * width)])
        self.middle = block(2 * width, 4 * width)
        self.up = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
                nn.ConvTranspose2d(2 * width, width, 2, 2),
            ]
        )
        self.join = nn.ModuleList(
            [block(4 * width, 2 * width), block(2 * width, width)]
        )
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join, finer in zip(self.up, self.join, reversed(kept), strict=True):
            x = join(torch.cat([up(x), finer], dim=1))
        return self.head(x)


def generator() -> nn.Module:
    """Numbers to an image, as in DCGAN."""
    return nn.Sequential(
        nn.ConvTranspose2d(12, 32, 4, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 3, 4, 2, 1),
        nn.Tanh(),
    )


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, 16, padding_idx=0)
        self.rnn = nn.LSTM(16, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(tokens))[0]).log_softmax(-1)


class TemporalBlock(nn.Module):
    """A depthwise convolution with growing dilation between two pointwise ones, as in
    Conv-TasNet.
    """

    def __init__(self, channels: int, hidden: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, hidden, 1),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
            nn.Conv1d(
                hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden
            ),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
            nn.Conv1d(hidden, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class TasNet(nn.Module):
    """Waves to waves: a learned filter bank, masks, and the bank back."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, 24, 8, stride=4, bias=False)
        self.blocks = nn.Sequential(*[TemporalBlock(24, 32, 2**d) for d in range(3)])
        self.decode = nn.ConvTranspose1d(24, 1, 8, stride=4, bias=False)

    def forward(self, wave: Tensor) -> Tensor:
        bank = self.encode(wave).relu()
        return self.decode(bank * self.blocks(bank).sigmoid())


def speech_cnn() -> nn.Module:
    """Keywords from a spectrogram, with depthwise separable convolutions."""

    def separable(channels: int) -> list[nn.Module]:
        return [
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        ]

    first = [
        nn.Conv2d(1, 16, (10, 4), stride=2, padding=(5, 1), bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
    ]
    return nn.Sequential(
        *first,
        *separable(16),
        *separable(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 12),
    )


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(16, 2, 1, 1, 24, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.transformer(source, target)


class Variational(nn.Module):
    """An autoencoder that returns what it made, and the mean and spread it made it of."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 64, 12)
        )
        self.decode = nn.Sequential(
            nn.Linear(6, 8 * 64),
            nn.Unflatten(1, (8, 8, 8)),
            nn.ConvTranspose2d(8, 1, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean, spread = self.encode(x).chunk(2, dim=1)
        return {
            "made": self.decode(mean + 0.5 * spread.exp()).sigmoid(),
            "mean": mean,
            "spread": spread,
        }


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def lab(name: str, **options: object) -> nn.Module:
    return network(name, **options)


OWN = {
    "unet": (UNet, lambda b, s: (torch.randn(b, 3, s, s),), (32, 48)),
    "gan_generator": (generator, lambda b, s: (torch.randn(b, 12, s, s),), (1, 3)),
    "lstm_tagger": (Tagger, lambda b, s: (torch.randint(0, 60, (b, s)),), (8, 13)),
    "tasnet": (TasNet, lambda b, s: (torch.randn(b, 1, s),), (200, 316)),
    "speech_cnn": (speech_cnn, lambda b, s: (torch.randn(b, 1, s, 10),), (49, 98)),
    "transformer": (
        Seq2Seq,
        lambda b, s: (torch.randn(b, s, 16), torch.randn(b, s + 2, 16)),
        (5, 9),
    ),
    "transformer_encoder": (encoder, lambda b, s: (torch.randn(b, s, 32),), (8, 13)),
    "multihead_attention": (
        lambda: SelfAttention(True),
        lambda b, s: (torch.randn(b, s, 16),),
        (8, 13),
    ),
    "variational": (Variational, lambda b, s: (torch.randn(b, 1, s, s),), (16,)),
    "window_attention": (
        WindowAttention,
        lambda b, s: (torch.randn(b, s, 8, 16),),
        (8, 12),
    ),
    "folded_video": (FoldedVideo, lambda b, s: (torch.randn(b, s, 3, 16, 16),), (4, 6)),
    "dual_path_rnn": (DualPath, lambda b, s: (torch.randn(b, 8, s, 7),), (5, 8)),
    "gtcrn": (SmallGTCRN, lambda b, s: (torch.randn(b, 2, s, 16),), (9, 20)),
    "digits_cnn": (
        lambda: lab("digits-cnn"),
        lambda b, s: (torch.randn(b, 1, s, s),),
        (8,),
    ),
    "resnet20_star": (
        lambda: lab("resnet20-star", inflate=1),
        lambda b, s: (torch.randn(b, 3, s, s),),
        (32, 40),
    ),
    "resnet20": (
        lambda: lab("resnet20"),
        lambda b, s: (torch.randn(b, 3, s, s),),
        (32, 40),
    ),
    "resnet18": (
        lambda: lab("resnet18", width=0.25),
        lambda b, s: (torch.randn(b, 3, s, s),),
        (64, 96),
    ),
    "squeezenet": (
        lambda: lab("squeezenet1_1"),
        lambda b, s: (torch.randn(b, 3, s, s),),
        (64, 96),
    ),
    "vgg16": (
        lambda: lab("vgg16", width=0.125),
        lambda b, s: (torch.randn(b, 3, s, s),),
        (32,),
    ),
    "speech_mlp": (
        lambda: lab("speech-mlp"),
        lambda b, s: (torch.rand(b, s, 129),),
        (8,),
    ),
    "lstm": (
        lambda: lab("lstm", hidden=32),
        lambda b, s: (torch.randint(0, 256, (b, s)),),
        (10, 17),
    ),
    "minilm": (
        lambda: lab(
            "minilm", vocabulary=60, hidden=32, layers=2, heads=4, intermediate=48
        ),
        lambda b, s: (torch.randint(1, 60, (b, s)),),
        (8, 13),
    ),
}
