"""SqueezeNet 1.1 (Iandola et al.), under torchvision's parameter names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tersify.lab.networks.resizing import Resize
from tersify.lab.networks.scaling import scaled_channels


class Fire(nn.Module):
    """A narrow 1×1 convolution, whose output a 1×1 and a 3×3 convolution widen side by
    side.
    """

    def __init__(self, channels_in: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels_in, squeeze, 1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze_activation(self.squeeze(x))
        return torch.cat(
            [
                self.expand1x1_activation(self.expand1x1(x)),
                self.expand3x3_activation(self.expand3x3(x)),
            ],
            1,
        )


class SqueezeNet(nn.Module):
    def __init__(
        self, width: float, classes: int, in_channels: int, dropout: float, resize: int
    ) -> None:
        super().__init__()
        stem, s1, s2, s3, s4 = scaled_channels([64, 16, 32, 48, 64], width)
        e1, e2, e3, e4 = scaled_channels([64, 128, 192, 256], width)
        self.resize = Resize(resize)
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, stem, 3, stride=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            Fire(stem, s1, e1),
            Fire(2 * e1, s1, e1),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            Fire(2 * e1, s2, e2),
            Fire(2 * e2, s2, e2),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            Fire(2 * e2, s3, e3),
            Fire(2 * e3, s3, e3),
            Fire(2 * e3, s4, e4),
            Fire(2 * e4, s4, e4),
        )
        last = nn.Conv2d(2 * e4, classes, 1)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            last,
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d((1, 1)),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                if module is last:
                    nn.init.normal_(module.weight, 0.0, 0.01)
                else:
                    nn.init.kaiming_uniform_(module.weight)
                # Behind the last ReLU a class that starts at 0 soon gives 0 for every
                # image, and never learns again.
                nn.init.constant_(module.bias, 1.0 if module is last else 0.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(self.resize(x))).flatten(1)


def squeezenet1_1(
    *,
    classes: int = 10,
    width: float = 1.0,
    in_channels: int = 3,
    dropout: float = 0.5,
    resize: int = 224,
) -> SqueezeNet:
    """1,235,496 parameters at 1000 classes. Images of other sizes are resized;
    `resize=0` leaves them (from 17 on).
    """
    return SqueezeNet(width, classes, in_channels, dropout, resize)
