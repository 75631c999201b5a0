"""The CIFAR ResNets of He et al. with parameter-free shortcuts (their option A)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from tersify.lab.networks.scaling import scaled_blocks, scaled_channels
from tersify.lab.networks.shared_layers import activation_of, conv3x3


class PadShortcut(nn.Module):
    """Every stride-th pixel, with channels of zeros on both sides until there are
    enough.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        missing = channels_out - channels_in
        self.before, self.after = missing // 2, missing - missing // 2
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(
            x[:, :, :: self.stride, :: self.stride],
            (0, 0, 0, 0, self.before, self.after),
        )


class BasicBlock(nn.Module):
    def __init__(
        self, channels_in: int, channels_out: int, stride: int, act: type[nn.Module]
    ) -> None:
        super().__init__()
        self.act = act()
        self.conv1 = conv3x3(channels_in, channels_out, stride)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = conv3x3(channels_out, channels_out)
        self.bn2 = nn.BatchNorm2d(channels_out)
        same = stride == 1 and channels_in == channels_out
        self.shortcut = (
            nn.Identity() if same else PadShortcut(channels_in, channels_out, stride)
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(self.conv1(x)))
        return self.act(self.bn2(self.conv2(out)) + self.shortcut(x))


class CifarResNet(nn.Module):
    def __init__(
        self,
        channels: list[int],
        blocks: int,
        classes: int,
        in_channels: int,
        act: type[nn.Module],
    ) -> None:
        super().__init__()
        self.act = act()
        self.conv1 = conv3x3(in_channels, channels[0])
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.layer1 = _stage(channels[0], channels[0], blocks, 1, act)
        self.layer2 = _stage(channels[0], channels[1], blocks, 2, act)
        self.layer3 = _stage(channels[1], channels[2], blocks, 2, act)
        self.linear = nn.Linear(channels[2], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.linear(out.mean((2, 3)))


def cifar_resnet(
    layers: int,
    *,
    classes: int = 10,
    width: float = 1.0,
    depth: float = 1.0,
    in_channels: int = 3,
    activation: str = "relu",
) -> CifarResNet:
    """`layers` = 6·blocks + 2: 20, 32, 44 and 56 have 3, 5, 7 and 9 blocks a stage."""
    blocks = scaled_blocks((layers - 2) // 6, depth)
    return CifarResNet(
        scaled_channels([16, 32, 64], width),
        blocks,
        classes,
        in_channels,
        activation_of(activation),
    )


def _stage(
    channels_in: int, channels_out: int, blocks: int, stride: int, act: type[nn.Module]
) -> nn.Sequential:
    first = BasicBlock(channels_in, channels_out, stride, act)
    return nn.Sequential(
        first,
        *(BasicBlock(channels_out, channels_out, 1, act) for _ in range(blocks - 1)),
    )
