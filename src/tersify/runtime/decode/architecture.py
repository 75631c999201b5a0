"""What a causal language model of transformers is, from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# What the kernels call transformers' activations; the second is whether the result is
# squared.
ACTIVATIONS = {
    "silu": ("SILU", False),
    "swish": ("SILU", False),
    "gelu": ("GELU", False),
    "gelu_new": ("GELU_TANH", False),
    "gelu_fast": ("GELU_TANH", False),
    "gelu_pytorch_tanh": ("GELU_TANH", False),
    "relu": ("CLAMP", False),
    "relu2": ("CLAMP", True),
}
# rotations that change with the length of the text
LENGTHENING = ("dynamic", "longrope")  # or a name that holds one of these
WINDOWED = ("qwen2", "qwen3", "smollm3")  # families whose layers may have windows


class UnknownModelError(ValueError):
    """A model that the decoder does not know; torch can still run it."""


@dataclass(frozen=True, kw_only=True)
class LayerNames:
    """The modules of one layer, by what they do; rows of several matrices that read the
    same input lie in order.
    """

    attention_norm: str
    queries_keys_values: tuple[str, ...]
    attention_out: str
    inner_norm: str
    inner: tuple[str, ...]  # the gate before what it opens, or one matrix alone
    out: str
    query_norm: str | None = None
    key_norm: str | None = None
    before_attention_out: str | None = None  # norms of BitNet
    before_out: str | None = None
    window: int = 0  # positions that are seen; 0: all
    scale: float = 1.0  # of the scores
    rotated: bool = True


@dataclass(frozen=True, kw_only=True)
class Architecture:
    family: str
    heads: int
    key_heads: int
    width: int  # of a head
    hidden: int
    inner: int
    vocabulary: int
    context: int  # the longest text that the model was made for
    activation: str
    squared: bool
    embedding: str
    positions: str | None  # a second embedding; None: heads are rotated
    final_norm: str
    head: str
    tied: bool
    layers: tuple[LayerNames, ...] = field(repr=False)


def architecture_of(config: Any) -> Architecture:
    """Raises UnknownModelError, with the reason, for what the decoder cannot do."""
    family = getattr(config, "model_type", None)
    if family not in FAMILIES:
        raise UnknownModelError(
            f"models of type {family!r} have no decoder; {', '.join(FAMILIES)} have"
        )
    return FAMILIES[family](config)


def _activation(name: str) -> tuple[str, bool]:
    if name not in ACTIVATIONS:
        raise UnknownModelError(
            f"the activation {name!r} has no kernel; {', '.join(ACTIVATIONS)} have"
        )
    return ACTIVATIONS[name]


def _check_rotation(config: Any) -> None:
    # The table of angles is made once, so rotations that change with the length of the
    # text cannot be served.
    rotation = getattr(config, "rope_parameters", None) or {}
    kind = rotation.get("rope_type", "default")
    lengthening = any(word in kind for word in LENGTHENING)
    if lengthening or "rope_theta" not in rotation:
        raise UnknownModelError(
            f"rotations of type {kind!r} with these settings have no kernel"
        )


def windows_of_layers(config: Any) -> list[int]:
    """How far each layer sees back; 0: to the first token.

    A configuration may carry settings that transformers ignores for its family.
    """
    window = getattr(config, "sliding_window", None) or 0
    if config.model_type == "mistral":
        return [window] * config.num_hidden_layers
    kinds = getattr(config, "layer_types", None)
    if config.model_type not in WINDOWED or kinds is None:
        return [0] * config.num_hidden_layers
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise UnknownModelError(f"layers of type {sorted(unknown)[0]!r} have no kernel")
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def _llama(config: Any) -> Architecture:
    """Llama and what is like it: Mistral, Qwen2, Qwen3, SmolLM2, SmolLM3, BitNet."""
    _check_rotation(config)
    activation, squared = _activation(config.hidden_act)
    # Some models have heads wider or narrower than hidden_size / heads.
    width = (
        getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads
    )
    # SmolLM3 leaves the rotation out in some layers; despite its name the list holds 1
    # where a layer rotates.
    rotated = (
        config.no_rope_layers
        if config.model_type == "smollm3"
        else [1] * config.num_hidden_layers
    )
    normed, sub_normed = config.model_type == "qwen3", config.model_type == "bitnet"
    layers = []
    for number, window in enumerate(windows_of_layers(config)):
        at = f"model.layers.{number}."
        layers.append(
            LayerNames(
                attention_norm=f"{at}input_layernorm",
                queries_keys_values=tuple(
                    f"{at}self_attn.{name}_proj" for name in "qkv"
                ),
                attention_out=f"{at}self_attn.o_proj",
                inner_norm=f"{at}post_attention_layernorm",
                inner=(f"{at}mlp.gate_proj", f"{at}mlp.up_proj"),
                out=f"{at}mlp.down_proj",
                query_norm=f"{at}self_attn.q_norm" if normed else None,
                key_norm=f"{at}self_attn.k_norm" if normed else None,
                before_attention_out=f"{at}self_attn.attn_sub_norm"
                if sub_normed
                else None,
                before_out=f"{at}mlp.ffn_sub_norm" if sub_normed else None,
                window=window,
                scale=width**-0.5,
                rotated=bool(rotated[number]),
            )
        )
    return Architecture(
        family=config.model_type,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        width=width,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        activation=activation,
        squared=squared,
        embedding="model.embed_tokens",
        positions=None,
        final_norm="model.norm",
        head="lm_head",
        tied=bool(config.tie_word_embeddings),
        layers=tuple(layers),
    )


def _gpt2(config: Any) -> Architecture:
    if config.add_cross_attention:
        raise UnknownModelError("a GPT-2 with cross-attention has no decoder here")
    activation, squared = _activation(config.activation_function)
    width = config.hidden_size // config.num_attention_heads
    layers = []
    for number in range(config.num_hidden_layers):
        at = f"transformer.h.{number}."
        # GPT-2's own options: no scale, or one that falls with the layer's number.
        scale = width**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= number + 1
        layers.append(
            LayerNames(
                attention_norm=f"{at}ln_1",
                queries_keys_values=(f"{at}attn.c_attn",),
                attention_out=f"{at}attn.c_proj",
                inner_norm=f"{at}ln_2",
                inner=(f"{at}mlp.c_fc",),
                out=f"{at}mlp.c_proj",
                scale=scale,
                rotated=False,
            )
        )
    return Architecture(
        family="gpt2",
        heads=config.num_attention_heads,
        key_heads=config.num_attention_heads,
        width=width,
        hidden=config.hidden_size,
        inner=config.n_inner or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        activation=activation,
        squared=squared,
        embedding="transformer.wte",
        positions="transformer.wpe",
        final_norm="transformer.ln_f",
        head="lm_head",
        tied=bool(config.tie_word_embeddings),
        layers=tuple(layers),
    )


FAMILIES: dict[str, Callable[[Any], Architecture]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "smollm3": _llama,
    "bitnet": _llama,
    "gpt2": _gpt2,
}
