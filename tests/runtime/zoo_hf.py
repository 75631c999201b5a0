"""Networks of transformers with tiny configurations: texts, images and sounds."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

WORDS = 60
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": WORDS,
}
CAUSAL = {
    **SMALL,
    "num_key_value_heads": 2,
    "use_cache": False,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
TEXT = (8, 13)

# Name in the zoo: (class of the network, class of its configuration, options of that,
# lengths).
TEXTS: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {
    "bert": ("BertModel", "BertConfig", SMALL, TEXT),
    "bert_classifier": ("BertForSequenceClassification", "BertConfig", SMALL, TEXT),
    "roberta": ("RobertaModel", "RobertaConfig", SMALL, TEXT),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": WORDS},
        TEXT,
    ),
    "albert": ("AlbertModel", "AlbertConfig", {**SMALL, "embedding_size": 16}, TEXT),
    "electra": ("ElectraModel", "ElectraConfig", {**SMALL, "embedding_size": 16}, TEXT),
    "mobilebert": (
        "MobileBertModel",
        "MobileBertConfig",
        {
            **SMALL,
            "embedding_size": 16,
            "intra_bottleneck_size": 16,
            "true_hidden_size": 16,
        },
        TEXT,
    ),
    "deberta_v2": (
        "DebertaV2Model",
        "DebertaV2Config",
        {
            **SMALL,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
            "max_relative_positions": 16,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        TEXT,
    ),
    "squeezebert": (
        "SqueezeBertModel",
        "SqueezeBertConfig",
        {**SMALL, "embedding_size": 32},
        TEXT,
    ),
    "mpnet": ("MPNetModel", "MPNetConfig", SMALL, TEXT),
    "convbert": (
        "ConvBertModel",
        "ConvBertConfig",
        {**SMALL, "embedding_size": 32, "conv_kernel_size": 3},
        TEXT,
    ),
    "fnet": ("FNetModel", "FNetConfig", {**SMALL, "max_position_embeddings": 64}, TEXT),
    "roformer": (
        "RoFormerModel",
        "RoFormerConfig",
        {**SMALL, "embedding_size": 32},
        TEXT,
    ),
    "modernbert": (
        "ModernBertModel",
        "ModernBertConfig",
        {
            **SMALL,
            "local_attention": 4,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
        TEXT,
    ),
    "t5_encoder": (
        "T5EncoderModel",
        "T5Config",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": WORDS,
        },
        TEXT,
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "vocab_size": WORDS,
            "use_cache": False,
        },
        TEXT,
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**SMALL, "use_cache": False, "max_position_embeddings": 64},
        TEXT,
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", CAUSAL, TEXT),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        {**CAUSAL, "sliding_window": 6},
        TEXT,
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", CAUSAL, TEXT),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**CAUSAL, "head_dim": 8}, TEXT),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**CAUSAL, "head_dim": 8}, TEXT),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**CAUSAL, "head_dim": 8, "sliding_window": 6},
        TEXT,
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", CAUSAL, TEXT),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", CAUSAL, TEXT),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", CAUSAL, TEXT),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", CAUSAL, TEXT),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "vocab_size": WORDS,
            "word_embed_proj_dim": 32,
            "max_position_embeddings": 64,
            "use_cache": False,
        },
        TEXT,
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "vocab_size": WORDS,
            "use_cache": False,
        },
        TEXT,
    ),
    "falcon": (
        "FalconForCausalLM",
        "FalconConfig",
        {**SMALL, "use_cache": False, "alibi": False},
        TEXT,
    ),
}

SIGHT = {key: value for key, value in SMALL.items() if key != "vocab_size"}
IMAGES: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {
    "hf_vit": (
        "ViTModel",
        "ViTConfig",
        {**SIGHT, "image_size": 32, "patch_size": 8},
        (32,),
    ),
    "hf_deit": (
        "DeiTModel",
        "DeiTConfig",
        {**SIGHT, "image_size": 32, "patch_size": 8},
        (32,),
    ),
    "hf_dinov2": (
        "Dinov2Model",
        "Dinov2Config",
        {**SIGHT, "image_size": 32, "patch_size": 8, "mlp_ratio": 2},
        (32, 48),
    ),
    "hf_segformer": (
        "SegformerModel",
        "SegformerConfig",
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "sr_ratios": [4, 2],
            "num_attention_heads": [1, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        (64, 48),
    ),
    "hf_clip_vision": (
        "CLIPVisionModel",
        "CLIPVisionConfig",
        {**SIGHT, "image_size": 32, "patch_size": 8},
        (32,),
    ),
}

WAVES = {
    **SMALL,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
SOUNDS: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config", WAVES, (400, 630)),
    "hubert": ("HubertModel", "HubertConfig", WAVES, (400, 630)),
}


def _model(network: str, config: str, options: dict[str, Any]) -> nn.Module:
    transformers = importlib.import_module("transformers")
    return getattr(transformers, network)(
        getattr(transformers, config)(**options)
    ).eval()


def whisper_encoder() -> nn.Module:
    options = {
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_layers": 1,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 48,
        "num_mel_bins": 20,
        "max_source_positions": 30,
        "vocab_size": WORDS,
        "pad_token_id": 0,
        "decoder_start_token_id": 1,
    }
    return _model("WhisperModel", "WhisperConfig", options).get_encoder().eval()


def tokens(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, WORDS, (batch, length))}


def pictures(batch: int, size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def waves(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(batch, length)}


def mel_features(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(batch, 20, length)}
