"""Modules that fold axes into the batch and unfold them again, as windows, frames and
dual paths do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WindowAttention(nn.Module):
    """Attention inside windows of 4×4 positions, each a row of the batch, as in Swin."""

    def __init__(self, channels: int = 16, heads: int = 2, window: int = 4) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.bias = nn.Parameter(torch.randn(heads, window**2, window**2))
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        n = self.window
        tiles = (
            self.norm(x)
            .view(b, h // n, n, w // n, n, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(-1, n * n, c)
        )
        q, k, v = (
            self.qkv(tiles)
            .reshape(-1, n * n, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5 + self.bias
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, n * n, c)
        y = (
            self.out(mixed)
            .view(b, h // n, w // n, n, n, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(b, h, w, c)
        )
        return x + y


class FoldedVideo(nn.Module):
    """Frames go through a 2-D network as rows of the batch, and a recurrent layer reads
    them in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.time = nn.GRU(8, 6, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.frames(x.flatten(0, 1)).flatten(1)
        return self.head(self.time(features.view(*x.shape[:2], -1))[0][:, -1])


class RowsOfSix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.reshape(-1, 6))


class DualPath(nn.Module):
    """One block of a dual-path recurrent network: along the chunks, then across them."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.inside = nn.LSTM(channels, channels, batch_first=True, bidirectional=True)
        self.inside_out = nn.Linear(2 * channels, channels)
        self.across = nn.LSTM(channels, channels, batch_first=True)
        self.norms = nn.ModuleList(
            [nn.GroupNorm(1, channels), nn.GroupNorm(1, channels)]
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, k, s = x.shape
        rows = x.permute(0, 3, 2, 1).reshape(b * s, k, c)
        rows = (
            self.inside_out(self.inside(rows)[0]).view(b, s, k, c).permute(0, 3, 2, 1)
        )
        x = x + self.norms[0](rows)
        columns = x.permute(0, 2, 3, 1).reshape(b * k, s, c)
        columns = self.across(columns)[0].view(b, k, s, c).permute(0, 3, 1, 2)
        return x + self.norms[1](columns)


class SmallGTCRN(nn.Module):
    """Speech enhancement as GTCRN does it: depthwise convolutions on half the channels,
    a shuffle, dual-path GRUs.
    """

    def __init__(self, bins: int = 16, channels: int = 8) -> None:
        super().__init__()
        self.register_buffer("bands", torch.rand(bins, bins // 2))
        self.encode = nn.Sequential(
            nn.Conv2d(2, channels, (1, 5), stride=(1, 2), padding=(0, 2)),
            nn.BatchNorm2d(channels),
            nn.PReLU(),
        )
        self.depthwise = nn.Conv2d(
            channels // 2, channels // 2, (3, 3), dilation=(2, 1), groups=channels // 2
        )
        self.point = nn.Conv2d(channels // 2, channels // 2, 1)
        self.inside = nn.GRU(
            channels, channels // 2, batch_first=True, bidirectional=True
        )
        self.across = nn.GRU(channels, channels, batch_first=True)
        self.decode = nn.ConvTranspose2d(
            channels, 2, (1, 5), stride=(1, 2), padding=(0, 2), output_padding=(0, 1)
        )

    def forward(self, spectrum: Tensor) -> Tensor:
        x = self.encode(spectrum @ self.bands)
        first, second = x.chunk(2, dim=1)
        first = self.point(self.depthwise(F.pad(first, (1, 1, 4, 0))).relu())
        x = torch.stack([first, second], dim=2).flatten(1, 2)
        b, c, t, f = x.shape
        rows = self.inside(x.permute(0, 2, 3, 1).reshape(b * t, f, c))[0].view(
            b, t, f, c
        )
        columns = self.across(rows.permute(0, 2, 1, 3).reshape(b * f, t, c))[0].view(
            b, f, t, c
        )
        mask = torch.tanh(self.decode(columns.permute(0, 3, 2, 1)))
        low = spectrum @ self.bands
        real = low[:, 0] * mask[:, 0] - low[:, 1] * mask[:, 1]
        imaginary = low[:, 1] * mask[:, 0] + low[:, 0] * mask[:, 1]
        return torch.stack([real, imaginary], dim=1) @ self.bands.t()


class PixelShuffler(nn.Module):
    """Space to channels and back, and channels moved to the batch in between."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.pixel_unshuffle(x, 2)
        y = self.mix(y.flatten(0, 1).unsqueeze(1)).view(y.shape)
        return F.pixel_shuffle(y, 2)


class SelfAttention(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=batch_first)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(x, x, x)
