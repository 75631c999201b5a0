"""AlexNet (Krizhevsky's one-tower form), under torchvision's parameter names."""

from __future__ import annotations

from torch import Tensor, nn

from tersify.lab.networks.resizing import Resize
from tersify.lab.networks.scaling import scaled_channels


class AlexNet(nn.Module):
    def __init__(
        self,
        channels: list[int],
        hidden: int,
        classes: int,
        in_channels: int,
        dropout: float,
        resize: int,
    ) -> None:
        super().__init__()
        c1, c2, c3, c4, c5 = channels
        self.resize = Resize(resize)
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, c1, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(c1, c2, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(c2, c3, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(c3, c4, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(c4, c5, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(c5 * 6 * 6, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(self.resize(x))).flatten(1))


def alexnet(
    *,
    classes: int = 10,
    width: float = 1.0,
    in_channels: int = 3,
    dropout: float = 0.5,
    resize: int = 224,
) -> AlexNet:
    """61,100,840 parameters at 1000 classes. Images of other sizes are resized;
    `resize=0` leaves them (from 63 on).
    """
    *channels, hidden = scaled_channels([64, 192, 384, 256, 256, 4096], width)
    return AlexNet(channels, hidden, classes, in_channels, dropout, resize)
