"""An LSTM over tokens (characters or words): a classifier of texts, or a language
model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tersify.checks import check_choice, check_whole

TASKS = ("classify", "language")


class LstmNet(nn.Module):
    """Tokens (N, T) → logits (N, classes) of the mean state, or (N, T, vocabulary) of
    every next token.
    """

    def __init__(
        self,
        vocabulary: int,
        embedding: int,
        hidden: int,
        layers: int,
        outputs: int,
        task: str,
        dropout: float,
    ) -> None:
        super().__init__()
        self.task = task
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(
            embedding,
            hidden,
            layers,
            batch_first=True,
            dropout=dropout if layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(hidden, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.embedding(tokens))[0]
        if self.task == "classify":
            # Token 0 is padding: it counts for nothing, wherever it stands.
            real = (tokens != 0).unsqueeze(-1)
            states = torch.where(real, states, 0).sum(1) / real.sum(1).clamp(min=1)
        return self.decoder(self.dropout(states))


def lstm(
    *,
    classes: int = 2,
    vocabulary: int = 256,
    embedding: int = 64,
    hidden: int = 128,
    layers: int = 1,
    task: str = "classify",
    dropout: float = 0.0,
) -> LstmNet:
    """The default vocabulary is the bytes of a text."""
    check_choice("task", task, TASKS)
    sizes = {
        "vocabulary": vocabulary,
        "embedding": embedding,
        "hidden": hidden,
        "layers": layers,
    }
    for name, value in sizes.items():
        check_whole(name, value, low=1)
    return LstmNet(
        vocabulary,
        embedding,
        hidden,
        layers,
        classes if task == "classify" else vocabulary,
        task,
        dropout,
    )
