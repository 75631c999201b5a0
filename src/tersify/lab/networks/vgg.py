"""VGG-16 with batch norm (Simonyan & Zisserman), under torchvision's parameter names."""

from __future__ import annotations

from torch import Tensor, nn

from tersify.checks import check_choice
from tersify.lab.networks.scaling import scaled_blocks, scaled_channels

HEADS = ("cifar", "imagenet")
# channels and convolutions between two poolings
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class Vgg(nn.Module):
    """The `cifar` head is one linear layer behind a global pooling; `imagenet` has the
    three layers of the paper.
    """

    def __init__(
        self,
        stages: list[tuple[int, int]],
        hidden: int,
        classes: int,
        in_channels: int,
        head: str,
        dropout: float,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = in_channels
        for channels, convolutions in stages:
            for _ in range(convolutions):
                layers += [
                    nn.Conv2d(before, channels, 3, padding=1),
                    nn.BatchNorm2d(channels),
                    nn.ReLU(inplace=True),
                ]
                before = channels
            # Rounded up, so that five halvings leave a pixel of 28×28; the same at 32
            # and 224.
            layers.append(nn.MaxPool2d(2, ceil_mode=head == "cifar"))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1 if head == "cifar" else 7)
        self.classifier = (
            nn.Sequential(nn.Dropout(dropout), nn.Linear(before, classes))
            if head == "cifar"
            else nn.Sequential(
                nn.Linear(before * 7 * 7, hidden),
                nn.ReLU(inplace=True),
                nn.Dropout(dropout),
                nn.Linear(hidden, hidden),
                nn.ReLU(inplace=True),
                nn.Dropout(dropout),
                nn.Linear(hidden, classes),
            )
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def vgg16(
    *,
    classes: int = 10,
    width: float = 1.0,
    depth: float = 1.0,
    in_channels: int = 3,
    head: str = "cifar",
    dropout: float | None = None,
) -> Vgg:
    """138,365,992 parameters with the `imagenet` head and 1000 classes; its dropout is
    0.5, the other's 0.
    """
    check_choice("head", head, HEADS)
    channels = scaled_channels([c for c, _ in STAGES], width)
    stages = [
        (c, scaled_blocks(n, depth)) for c, (_, n) in zip(channels, STAGES, strict=True)
    ]
    [hidden] = scaled_channels([4096], width)
    if dropout is None:
        dropout = 0.0 if head == "cifar" else 0.5
    return Vgg(stages, hidden, classes, in_channels, head, dropout)
