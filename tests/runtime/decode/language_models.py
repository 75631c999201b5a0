"""Small random causal models of every family that the decoder knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

VOCABULARY = 97
LLAMA_LIKE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "smollm2": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 3}),
    "scaled": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 500.0,
                "factor": 4.0,
            },
            "attention_bias": True,
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "qwen2": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 20, "tie_word_embeddings": True}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4}),
    "bitnet": ("BitNet", {}),
}


def random_model(family: str, seed: int = 0) -> Any:
    """In eval mode, with weights large enough that its greedy texts do not stand still."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    if family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=48,
            n_layer=3,
            n_head=4,
            n_positions=512,
            bos_token_id=1,
            eos_token_id=None,
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        name, changes = FAMILIES[family]
        config = getattr(transformers, f"{name}Config")(**{**LLAMA_LIKE, **changes})
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    return model.eval()


def random_ids(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(
        2, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed)
    )


def quantized_(model: Any) -> Any:
    """Every matrix of sixteen levels."""
    levels = torch.linspace(-0.5, 0.5, 16) ** 3 * 4
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(
                    levels[(parameter[..., None] - levels).abs().argmin(-1)]
                )
    return model
