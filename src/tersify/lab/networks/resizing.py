"""Small images for networks whose first layers expect large ones."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from tersify.checks import check_whole


class Resize(nn.Module):
    """Square images of `side` pixels, on the device the batch is on; 0 leaves them as
    they are. No parameters.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        if side != 0:
            check_whole("resize", side, low=1)
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        if self.side == 0 or x.shape[-2:] == (self.side, self.side):
            return x
        return F.interpolate(
            x, size=(self.side, self.side), mode="bilinear", align_corners=False
        )
