"""ResNet-20*, the network of paper 1: a CIFAR ResNet with its batch norm behind the
additions.
"""

from __future__ import annotations

from torch import Tensor, nn

from tersify.checks import check_whole
from tersify.lab.networks.scaling import scaled_blocks, scaled_channels
from tersify.lab.networks.shared_layers import activation_of, conv3x3, initialize_


class StarBlock(nn.Module):
    """conv, BN, act, conv, + shortcut, then BN and act."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        stride: int,
        act: type[nn.Module],
        last: bool,
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels_in, channels_out, stride)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.act1 = act()
        self.conv2 = conv3x3(channels_out, channels_out)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.act2 = act()
        # A 1×1 convolution only where size or channels change; the sum needs equal
        # shapes.
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )
        self.last = last
        if last:
            # It exists and counts, but the network's own BN behind the pooling takes
            # its place. Frozen, because data-parallel training waits for the gradient
            # of every parameter that wants one.
            self.bn2.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.act1(self.bn1(self.conv1(x))))
        out = out + self.shortcut(x)
        return out if self.last else self.act2(self.bn2(out))


class ResNetStar(nn.Module):
    def __init__(
        self,
        channels: list[int],
        blocks: int,
        classes: int,
        in_channels: int,
        act: type[nn.Module],
        init: str,
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, channels[0])
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.act1 = act()
        # What enters each stage: the stem's channels, then those of the stage before.
        inputs = [channels[0], *channels]
        self.layer1, self.layer2, self.layer3 = (
            _stage(inputs[i], channels[i], blocks, 1 if i == 0 else 2, act, last=i == 2)
            for i in range(3)
        )
        self.bn2 = nn.BatchNorm1d(channels[2])
        self.act2 = act()
        self.fc = nn.Linear(channels[2], classes)
        self.bn3 = nn.BatchNorm1d(classes)
        initialize_(self, init)

    def forward(self, x: Tensor) -> Tensor:
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        out = self.act2(self.bn2(out.mean((2, 3))))
        return self.bn3(self.fc(out))


def resnet20_star(
    *,
    inflate: int = 5,
    classes: int = 10,
    width: float = 1.0,
    depth: float = 1.0,
    in_channels: int = 3,
    activation: str = "relu",
    init: str = "paper",
) -> ResNetStar:
    """175,406 parameters at inflate 1 and 4,338,030 at 5."""
    check_whole("inflate", inflate, low=1)
    channels = scaled_channels([16 * inflate, 32 * inflate, 64 * inflate], width)
    return ResNetStar(
        channels,
        scaled_blocks(2, depth),
        classes,
        in_channels,
        activation_of(activation),
        init,
    )


def _stage(
    channels_in: int,
    channels_out: int,
    blocks: int,
    stride: int,
    act: type[nn.Module],
    last: bool,
) -> nn.Sequential:
    return nn.Sequential(
        *(
            StarBlock(
                channels_in if i == 0 else channels_out,
                channels_out,
                stride if i == 0 else 1,
                act,
                last=last and i == blocks - 1,
            )
            for i in range(blocks)
        )
    )
