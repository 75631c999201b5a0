"""Other lengths, image sizes and batches than the example's: what the module takes, the
compiled network takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_torch import check, thinned_
from folded_modules import DualPath, FoldedVideo, SmallGTCRN, WindowAttention
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Resized(nn.Module):
    """Sizes computed from sizes: half of the width, a grid, an upsampling to the
    input's own size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)[..., : x.shape[-1] // 3]
        y = y * torch.linspace(0, 1, y.shape[-2]).view(-1, 1)
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Positions(nn.Module):
    """Tokens plus the first rows of a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(13, 8)
        self.positions = nn.Embedding(32, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(
            self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        )


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.rnn = kind(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(tokens))[0])


def image_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def speech_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 8, 5, dilation=2),
        nn.PReLU(8),
        nn.ConvTranspose1d(8, 2, 4, 2),
        nn.Tanh(),
    )


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(0, 13, (batch, length))


def encoder() -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 24, batch_first=True),
        1,
        enable_nested_tensor=False,
    )


SIZED: dict[
    str, tuple[Callable[[], nn.Module], Callable[..., Tensor], list[tuple[int, ...]]]
] = {
    "image": (
        image_net,
        lambda b, h, w: torch.randn(b, 3, h, w),
        [(2, 12, 12), (1, 9, 14), (5, 12, 12), (2, 17, 8)],
    ),
    "speech": (
        speech_net,
        lambda b, t: torch.randn(b, 2, t),
        [(2, 20), (1, 33), (3, 20), (2, 11)],
    ),
    "resized": (
        Resized,
        lambda b, h, w: torch.randn(b, 3, h, w),
        [(2, 12, 12), (1, 9, 15), (3, 6, 20)],
    ),
    "positions": (Positions, tokens, [(2, 6), (1, 9), (4, 1), (3, 32)]),
    "lstm": (lambda: Tagger(nn.LSTM), tokens, [(2, 6), (1, 9), (4, 1), (3, 17)]),
    "gru": (lambda: Tagger(nn.GRU), tokens, [(2, 6), (1, 9), (4, 1)]),
    "encoder": (
        encoder,
        lambda b, t: torch.randn(b, t, 16),
        [(2, 6), (1, 9), (4, 1), (3, 17)],
    ),
    "linear_of_ranks": (
        lambda: nn.Linear(4, 3),
        lambda *s: torch.randn(*s, 4),
        [(2,), (2, 3), (1, 2, 3), (5,)],
    ),
    "windows": (
        WindowAttention,
        lambda b, h, w: torch.randn(b, h, w, 16),
        [(2, 8, 8), (1, 4, 12), (3, 8, 4)],
    ),
    "video": (
        FoldedVideo,
        lambda b, t, h: torch.randn(b, t, 3, h, h),
        [(2, 3, 8), (1, 5, 8), (2, 2, 6)],
    ),
    "dual_path": (
        DualPath,
        lambda b, k, s: torch.randn(b, 8, k, s),
        [(2, 5, 7), (1, 6, 3), (3, 2, 9)],
    ),
    "gtcrn": (
        SmallGTCRN,
        lambda b, t: torch.randn(b, 2, t, 16),
        [(2, 9), (1, 4), (3, 20)],
    ),
}


@pytest.mark.parametrize("weights", ["dense", "ternary"])
@pytest.mark.parametrize("network", SIZED)
def test_other_sizes_than_the_examples_are_right(network, weights):
    build, inputs, sizes = SIZED[network]
    model = build().eval()
    if weights == "ternary":
        thinned_(model, 0.7, ternary=True)
    fast = compile(model, inputs(*sizes[0]))
    for size in [*sizes, *reversed(sizes)]:
        assert check(fast, model, inputs(*size)) <= 2e-5


@pytest.mark.parametrize("network", ["image", "speech"])
def test_int8_takes_other_sizes(network):
    build, inputs, sizes = SIZED[network]
    model = thinned_(build(), 0.6, ternary=True).eval()
    shown = [inputs(*sizes[0]) for _ in range(4)]
    fast = compile(model, shown[0], precision="int8", calibration=shown)
    for size in sizes:
        assert check(fast, model, inputs(*size), bound=0.25) >= 0


def test_a_size_the_module_does_not_take_is_an_error_and_the_next_call_is_right():
    model = image_net().eval()
    fast = compile(model, torch.randn(2, 3, 12, 12))
    for wrong in (
        torch.randn(2, 4, 12, 12),
        torch.randn(2, 3, 2, 2),
        torch.randn(12),
        torch.randn(2, 3, 12, 12).double(),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            fast(wrong)
        assert check(fast, model, torch.randn(2, 3, 12, 12)) <= 2e-5


def test_inputs_of_different_batches_follow_the_module():
    class Outer(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.relu(x.unsqueeze(1) + y.unsqueeze(0))

    model = Outer().eval()
    fast = compile(model, (torch.randn(2, 4), torch.randn(3, 4)))
    for first, second in ((2, 3), (3, 2), (4, 4), (1, 5)):
        assert check(fast, model, torch.randn(first, 4), torch.randn(second, 4)) <= 2e-5


def language_model(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    common = {"vocab_size": 60, "use_cache": False}
    if name == "bert":
        config = transformers.BertConfig(
            vocab_size=60,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
        )
        return transformers.BertModel(config).eval()
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_embd=16, n_layer=2, n_head=2, n_positions=64, **common
        )
        return transformers.GPT2LMHeadModel(config).eval()
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        **common,
    )
    return transformers.LlamaForCausalLM(config).eval()


def words(batch: int, length: int, mask: bool = False) -> dict[str, Any]:
    given = {"input_ids": torch.randint(0, 60, (batch, length))}
    if mask:
        given["attention_mask"] = (
            torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
        ).long()
    return given


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_language_model_takes_other_batches_and_lengths(name, mask):
    model = language_model(name)
    fast = compile(model, words(2, 8, mask))
    for batch, length in ((2, 8), (1, 8), (5, 8), (2, 13), (3, 1), (1, 30), (2, 8)):
        assert check(fast, model, **words(batch, length, mask)) <= 2e-5


def test_a_ternary_language_model_takes_other_batches_and_lengths():
    model = thinned_(language_model("llama"), 0.5, ternary=True)
    fast = compile(model, words(2, 8))
    for batch, length in ((2, 8), (1, 11), (4, 3)):
        assert check(fast, model, **words(batch, length)) <= 2e-5
