"""BERT's encoder under Hugging Face's parameter names, in plain torch; as large as
MiniLM-L6 unless told.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.checks import check_whole

PADDING = 0
NORM_EPSILON = 1e-12


class Embeddings(nn.Module):
    position_ids: Tensor

    def __init__(self, vocabulary: int, hidden: int, positions: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, hidden)
        self.position_embeddings = nn.Embedding(positions, hidden)
        self.token_type_embeddings = nn.Embedding(2, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, NORM_EPSILON)
        self.register_buffer("position_ids", torch.arange(positions)[None])

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.position_embeddings(self.position_ids[:, : tokens.shape[1]])
        # Every text is a single sentence here, which BERT calls type 0.
        first_kind = self.token_type_embeddings.weight[0]
        return self.LayerNorm(self.word_embeddings(tokens) + places + first_kind)


class SelfAttention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.num_attention_heads = heads
        self._head = hidden // heads  # its width, which stays when heads go
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, real: Tensor, dropout: float) -> Tensor:
        q, k, v = [
            layer(x).unflatten(-1, (-1, self._head)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=real, dropout_p=dropout if self.training else 0.0
        )
        return mixed.transpose(1, 2).flatten(2)


class Projection(nn.Module):
    """A linear layer whose result is added to what came before it."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, NORM_EPSILON)

    def forward(self, x: Tensor, before: Tensor, dropout: float) -> Tensor:
        return self.LayerNorm(F.dropout(self.dense(x), dropout, self.training) + before)


class Layer(nn.Module):
    def __init__(
        self, hidden: int, heads: int, intermediate: int, dropout: float
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.attention = nn.ModuleDict(
            {"self": SelfAttention(hidden, heads), "output": Projection(hidden, hidden)}
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(hidden, intermediate)})
        self.output = Projection(intermediate, hidden)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        attended = self.attention["output"](
            self.attention["self"](x, real, self.dropout), x, self.dropout
        )
        return self.output(
            F.gelu(self.intermediate["dense"](attended)), attended, self.dropout
        )


class MiniLm(nn.Module):
    """Tokens (N, T), 0 for padding → logits (N, classes) of the mean state."""

    # A pretrained encoder comes without a classifier: the fresh one stays. New
    # checkpoints leave the numbers out.
    may_lack = ("classifier.", "position_ids")

    def __init__(
        self,
        classes: int,
        vocabulary: int,
        hidden: int,
        layers: int,
        heads: int,
        intermediate: int,
        positions: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocabulary, hidden, positions)
        each = [Layer(hidden, heads, intermediate, dropout) for _ in range(layers)]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(each)})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(hidden, hidden)})
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden, classes)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, 0.0, 0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def states(self, tokens: Tensor) -> Tensor:
        """(N, T, hidden): what the encoder makes of each token."""
        # (N, 1, 1, T): no token attends to padding, in any head.
        real = (tokens != PADDING)[:, None, None, :]
        x = F.dropout(self.embeddings(tokens), self.dropout.p, self.training)
        for layer in self.encoder["layer"]:  # type: ignore[attr-defined]
            x = layer(x, real)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        real = (tokens != PADDING).unsqueeze(-1)
        # The mean over real tokens; a text of padding alone gives zeros and not NaN.
        mean = (self.states(tokens) * real).sum(1) / real.sum(1).clamp(min=1)
        return self.classifier(self.dropout(torch.tanh(self.pooler["dense"](mean))))


def minilm(
    *,
    classes: int = 2,
    vocabulary: int = 30522,
    hidden: int = 384,
    layers: int = 6,
    heads: int = 12,
    intermediate: int = 1536,
    positions: int = 512,
    dropout: float = 0.1,
) -> MiniLm:
    """22,713,986 parameters with two classes, half of them the words' embeddings."""
    sizes = {
        "vocabulary": vocabulary,
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "intermediate": intermediate,
        "positions": positions,
    }
    for name, value in sizes.items():
        check_whole(name, value, low=1)
    if hidden % heads:
        raise ValueError(
            f"hidden must be a multiple of heads, got {hidden} and {heads}"
        )
    return MiniLm(
        classes, vocabulary, hidden, layers, heads, intermediate, positions, dropout
    )
