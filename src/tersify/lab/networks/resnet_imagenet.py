"""ResNet-18/34/50/101 (He et al.) with the stem of ImageNet or of CIFAR, under
torchvision's parameter names.
"""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from tersify.checks import check_choice
from tersify.lab.networks.resizing import Resize
from tersify.lab.networks.scaling import scaled_blocks, scaled_channels
from tersify.lab.networks.shared_layers import conv3x3


class Block(nn.Module):
    """Two 3×3 convolutions beside the shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(
        self, channels_in: int, channels: int, stride: int, downsample: nn.Module | None
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels_in, channels, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1×1, 3×3 (with the stride, as torchvision has it) and 1×1 to four times the
    channels.
    """

    expansion: ClassVar[int] = 4

    def __init__(
        self, channels_in: int, channels: int, stride: int, downsample: nn.Module | None
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, channels * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels * self.expansion)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


STEMS = ("imagenet", "cifar")


class ResNet(nn.Module):
    def __init__(
        self,
        block: type[Block] | type[Bottleneck],
        channels: list[int],
        blocks: list[int],
        classes: int,
        in_channels: int,
        resize: int,
        zero_init: bool,
        stem: str,
    ) -> None:
        super().__init__()
        self.resize = Resize(resize)
        large = stem == "imagenet"
        # The ImageNet stem shrinks an image by four before the first block; small
        # images would have nothing left.
        kernel, stride, padding = (7, 2, 3) if large else (3, 1, 1)
        self.conv1 = nn.Conv2d(
            in_channels, channels[0], kernel, stride, padding, bias=False
        )
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        # What enters each stage, and at the end the classifier: a bottleneck gives four
        # times its channels.
        inputs = [channels[0], *(c * block.expansion for c in channels)]
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _stage(block, inputs[i], channels[i], blocks[i], 1 if i == 0 else 2)
            for i in range(4)
        )
        self.fc = nn.Linear(inputs[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )
            # With γ = 0 in its last norm a block begins as the identity (Goyal et al.
            # 2017).
            if zero_init and isinstance(module, Block | Bottleneck):
                nn.init.zeros_(
                    (module.bn2 if isinstance(module, Block) else module.bn3).weight
                )

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(self.resize(x)))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


_DEPTHS: dict[int, tuple[type[Block] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (Block, (2, 2, 2, 2)),
    34: (Block, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}
LAYERS = tuple(_DEPTHS)


def imagenet_resnet(
    layers: int,
    *,
    classes: int = 10,
    width: float = 1.0,
    depth: float = 1.0,
    in_channels: int = 3,
    resize: int = 0,
    zero_init: bool = False,
    stem: str = "imagenet",
) -> ResNet:
    """Paper 4 gives these networks 32×32 images as they are and `stem="cifar"`: 3×3,
    stride 1, no max pool.

    `resize=224` enlarges the images first. With `zero_init` every block starts as its
    shortcut alone, from which a deep network learns sooner.
    """
    check_choice("stem", stem, STEMS)
    block, blocks = _DEPTHS[layers]
    channels = scaled_channels([64, 128, 256, 512], width)
    depths = [scaled_blocks(n, depth) for n in blocks]
    return ResNet(
        block, channels, depths, classes, in_channels, resize, zero_init, stem
    )


def _stage(
    block: type[Block] | type[Bottleneck],
    channels_in: int,
    channels: int,
    blocks: int,
    stride: int,
) -> nn.Sequential:
    channels_out = channels * block.expansion
    downsample = None
    if stride != 1 or channels_in != channels_out:
        downsample = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
            nn.BatchNorm2d(channels_out),
        )
    first = block(channels_in, channels, stride, downsample)
    return nn.Sequential(
        first, *(block(channels_out, channels, 1, None) for _ in range(blocks - 1))
    )
