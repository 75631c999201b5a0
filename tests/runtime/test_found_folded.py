"""Axes folded into the batch: windows, frames, rows and dual paths are not the batch,
whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from against_torch import check, thinned_
from folded_modules import (
    DualPath,
    FoldedVideo,
    PixelShuffler,
    RowsOfSix,
    SelfAttention,
    SmallGTCRN,
    WindowAttention,
)
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Permuted(nn.Module):
    """The batch becomes the last axis, a layer works over the others, and it comes
    back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).permute(2, 1, 0)
        return self.linear(y.transpose(1, 2)).movedim(0, 2).softmax(dim=0)


class FlattenedWhole(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(0), nn.Unflatten(0, (-1, 4)), nn.Linear(4, 3))


def encoder(
    batch_first: bool = True, norm_first: bool = False, activation: str = "relu"
) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        16,
        4,
        24,
        dropout=0.1,
        batch_first=batch_first,
        norm_first=norm_first,
        activation=activation,
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "window_attention": (WindowAttention, lambda b: torch.randn(b, 8, 12, 16)),
    "frames_in_the_batch": (FoldedVideo, lambda b: torch.randn(b, 4, 3, 8, 6)),
    "rows_of_six": (RowsOfSix, lambda b: torch.randn(b, 8, 6)),
    "rows_of_six_across_items": (RowsOfSix, lambda b: torch.randn(b, 4, 3, 4)),
    "encoder": (encoder, lambda b: torch.randn(b, 7, 16)),
    "encoder_norm_first": (
        lambda: encoder(norm_first=True, activation="gelu"),
        lambda b: torch.randn(b, 7, 16),
    ),
    "encoder_batch_second": (
        lambda: encoder(batch_first=False),
        lambda b: torch.randn(7, b, 16),
    ),
    "multihead_attention": (
        lambda: SelfAttention(True),
        lambda b: torch.randn(b, 6, 16),
    ),
    "multihead_attention_batch_second": (
        lambda: SelfAttention(False),
        lambda b: torch.randn(6, b, 16),
    ),
    "dual_path": (DualPath, lambda b: torch.randn(b, 8, 5, 7)),
    "gtcrn": (SmallGTCRN, lambda b: torch.randn(b, 2, 9, 16)),
    "pixel_shuffle": (PixelShuffler, lambda b: torch.randn(b, 3, 6, 8)),
    "flattened_whole": (FlattenedWhole, lambda b: torch.randn(b, 8)),
    "batch_moved_last": (Permuted, lambda b: torch.randn(b, 5, 4)),
}


@pytest.mark.parametrize("weights", ["dense", "pruned", "ternary"])
@pytest.mark.parametrize("case", CASES)
def test_folded_axes_give_what_the_module_gives_for_every_batch(case, weights):
    build, inputs = CASES[case]
    model = build().eval()
    if weights != "dense":
        thinned_(model, 0.8, ternary=weights == "ternary")
    fast = compile(model, inputs(2), threads=2)
    for batch in (2, 1, 5, 2):
        assert check(fast, model, inputs(batch)) <= 2e-5


@pytest.mark.parametrize(
    "case",
    ["window_attention", "frames_in_the_batch", "rows_of_six", "encoder", "dual_path"],
)
def test_a_network_compiled_for_one_item_takes_many(case):
    build, inputs = CASES[case]
    model = build().eval()
    fast = compile(model, inputs(1))
    for batch in (3, 1):
        assert check(fast, model, inputs(batch)) <= 2e-5


@pytest.mark.parametrize(
    "case", ["frames_in_the_batch", "rows_of_six", "window_attention"]
)
def test_the_same_input_gives_the_same_answer_each_time(case):
    build, inputs = CASES[case]
    fast = compile(build().eval(), inputs(2))
    x = inputs(3)
    first = fast(x).clone()
    for _ in range(5):
        assert torch.equal(fast(x), first)


class Causal(nn.Module):
    """An encoder whose positions see only those before them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(7))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, mask=self.mask, is_causal=True)


def test_an_encoder_whose_positions_see_only_the_past_is_right():
    model = Causal().eval()
    fast = compile(model, torch.randn(2, 7, 16))
    for batch in (3, 1):
        assert check(fast, model, torch.randn(batch, 7, 16)) <= 2e-5


def test_an_encoder_with_a_mask_of_padding_is_right():
    model = encoder().eval()

    def inputs(batch: int) -> dict[str, Tensor]:
        padding = torch.arange(7) >= torch.randint(3, 8, (batch, 1))
        return {"src": torch.randn(batch, 7, 16), "src_key_padding_mask": padding}

    fast = compile(model, inputs(2))
    for batch in (4, 2, 1):
        assert check(fast, model, **inputs(batch)) <= 2e-5


@pytest.mark.filterwarnings("ignore:precision='int8' changes nothing")
def test_a_copy_that_puts_numbers_in_order_does_so_in_the_reference_too():
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(2, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(
                x.unsqueeze(-1).expand(-1, -1, 5).movedim(2, 0).reshape(5, 4, 3)
            )

    model = Spread().eval()
    x = torch.randn(4, 3)
    fast = compile(model, x, precision="int8")
    assert torch.allclose(fast(x), model(x), atol=1e-5)
