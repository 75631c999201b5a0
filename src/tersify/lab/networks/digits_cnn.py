"""A small conv net for 8×8 digits: trains in seconds on a laptop."""

from __future__ import annotations

from torch import Tensor, nn

from tersify.lab.networks.scaling import scaled_blocks, scaled_channels
from tersify.lab.networks.shared_layers import activation_of, conv3x3, spread_weights_


class DigitsCnn(nn.Module):
    """Conv stages at 8×8 and 4×4, pooled to 2×2, then two linear layers.

    A batch norm follows every layer, the classifier too, so that levels of −1, 0 and +1
    need no scale.
    """

    def __init__(
        self,
        channels: list[int],
        hidden: int,
        blocks: int,
        classes: int,
        in_channels: int,
        act: type[nn.Module],
    ) -> None:
        super().__init__()
        stem, body = channels
        layers: list[nn.Module] = [
            conv3x3(in_channels, stem),
            nn.BatchNorm2d(stem),
            act(),
        ]
        for i in range(2 * blocks):
            layers += [
                conv3x3(stem if i == 0 else body, body, 2 if i == 0 else 1),
                nn.BatchNorm2d(body),
                act(),
            ]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(4 * body, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            act(),
            nn.Linear(hidden, classes, bias=False),
            nn.BatchNorm1d(classes),
        )
        spread_weights_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def digits_cnn(
    *,
    classes: int = 10,
    width: float = 1.0,
    depth: float = 1.0,
    in_channels: int = 1,
    activation: str = "relu",
) -> DigitsCnn:
    stem, body, hidden = scaled_channels([32, 64, 128], width)
    return DigitsCnn(
        [stem, body],
        hidden,
        scaled_blocks(1, depth),
        classes,
        in_channels,
        activation_of(activation),
    )
