"""A Hugging Face encoder in the shape of the lab's networks: tokens in, logits out."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class TextEncoder(nn.Module):
    """Token numbers (N, T) → logits (N, classes); the padding token is not attended to."""

    def __init__(self, model: nn.Module, padding: int) -> None:
        super().__init__()
        self.model = model
        self.padding = padding

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(
            input_ids=tokens, attention_mask=tokens != self.padding
        ).logits


def text_encoder(
    transformers: Any, folder: str, *, classes: int = 2, **options: Any
) -> TextEncoder:
    """The encoder stored in a folder (config.json, model.safetensors) with a
    classifier, fresh unless stored too.
    """
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=classes, local_files_only=True, **options
    )
    return TextEncoder(model, model.config.pad_token_id or 0)
