"""Plans of transformers and recurrent networks that nobody wrote for them, and the call
that keeps a network from its plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from library import Network
from plan_networks import packed
from torch import Tensor, nn

import tersify
from tersify.runtime.portable import Replay, lowered


class ByHand(nn.Module):
    """Attention of matrix products, as courses write it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(24, 24) for _ in range(3))
        self.out = nn.Linear(24, 24)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        q, k, v = (
            layer(x).view(batch, steps, 3, width // 3).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // 3)
        mixed = self.drop(torch.softmax(scores, -1)) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(batch, steps, width))


class OneHead(nn.Module):
    """Products of three axes, and a mask of the input's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(24, 72)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inside(x).chunk(3, -1)
        scores = torch.bmm(q, k.transpose(1, 2)) * 24**-0.5
        return torch.bmm(scores.softmax(-1), v)


class Patches(nn.Module):
    """The beginning and the end of a vision transformer: patches, a class token,
    positions, and three pieces of one product.
    """

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 24))
        self.places = nn.Parameter(torch.randn(1, 10, 24))
        self.inside, self.head = nn.Linear(24, 72), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        three = self.inside(x).reshape(*x.shape[:2], 3, 2, 12).permute(2, 0, 3, 1, 4)
        q, k, v = three.unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.head((x + mixed.transpose(1, 2).flatten(2))[:, 0])


class LastStep(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.steps = kind(12, 16, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.steps(x)[0][:, -1])


class FromAState(nn.Module):
    """Begins with a learned state and gives its last states and cells."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.LSTM(12, 16, num_layers=2, batch_first=True)
        self.first = nn.Parameter(torch.randn(2, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        state = self.first.expand(-1, len(x), -1).contiguous()
        out, (hidden, cell) = self.steps(x, (state, torch.zeros_like(state)))
        return torch.cat([out[:, 0], hidden[0], cell[0], cell[1]], 1)


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertModel(config)

        def forward(self, ids: Tensor) -> Tensor:
            return self.bert(ids).last_hidden_state

    return Words()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


SEQUENCES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "encoder_layer": (
        lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
        lambda: torch.randn(2, 9, 32),
    ),
    "encoder": (encoder, lambda: torch.randn(2, 9, 32)),
    "attention_by_hand": (ByHand, lambda: torch.randn(2, 7, 24)),
    "one_head_by_hand": (OneHead, lambda: torch.randn(2, 7, 24)),
    "patches": (Patches, lambda: torch.randn(2, 3, 12, 12)),
    "bert": (bert, lambda: torch.randint(0, 40, (2, 9))),
    "lstm": (lambda: LastStep(nn.LSTM), lambda: torch.randn(2, 9, 12)),
    "from_a_state": (FromAState, lambda: torch.randn(2, 9, 12)),
    "gru": (lambda: LastStep(nn.GRU), lambda: torch.randn(2, 9, 12)),
}


def seeded(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, example = SEQUENCES[name]
    return make().eval(), example()


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_network_of_sequences_gets_a_plan_that_makes_what_torch_makes(
    name: str,
) -> None:
    model, example = seeded(name)
    tensors = packed(model)
    program = lowered(model, example, tensors)
    (made,) = Replay(program, tensors).run([example])
    with torch.no_grad():
        assert torch.allclose(made, model(example), rtol=0, atol=1e-5)


@pytest.mark.long  # builds the library
@pytest.mark.parametrize("name", SEQUENCES)
def test_the_library_runs_a_network_of_sequences_as_torch_does(
    name: str, tmp_path: Path
) -> None:
    model, example = seeded(name)
    path = tmp_path / "net.terse"
    tersify.save(packed(model), path, network=model, example=example, plan="fp32")
    made = Network(path.read_bytes()).run(example.numpy())
    with torch.no_grad():
        assert np.abs(made - model(example).numpy()).max() <= 1e-5


class Refused(nn.Module):
    def __init__(self, act: Callable[[Tensor, nn.Module], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(6))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.act(x, self))


REFUSED: dict[str, tuple[Callable[[Tensor, nn.Module], Tensor], str]] = {
    "drops_in_attention": (
        lambda x, _: nn.functional.scaled_dot_product_attention(
            x[None], x[None], x[None], dropout_p=0.5
        )[0],
        "'scaled_dot_product_attention'",
    ),
    "draws": (lambda x, _: x + torch.rand_like(x), "'rand_like' draws random"),
    "drops": (
        lambda x, _: nn.functional.dropout(x, 0.5, training=True),
        "draws random numbers",
    ),
    "draws_in_place": (
        lambda x, _: x * torch.empty_like(x).bernoulli_(0.5),
        "'bernoulli' draws random",
    ),
    "counts": (
        lambda x, m: x + m.seen.add_(x.mean(0)),  # type: ignore[operator, union-attr]
        "'add' writes to seen",
    ),
    "writes_to_its_input": (lambda x, _: x.mul_(2), "'mul' writes to an input"),
    "reads_strides": (
        lambda x, _: x * float(x.stride(0)),
        "'stride' looks at how its tensor lies",
    ),
    "strides_itself": (
        lambda x, _: x.as_strided((2, 6), (6, 1)) + 1,
        "'as_strided' looks at how",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_refusal_of_a_plan_names_the_call(name: str) -> None:
    act, words = REFUSED[name]
    model = Refused(act).eval()
    with pytest.raises(ValueError, match=words):
        lowered(model, torch.randn(2, 6), packed(model))
