"""The decoding loop that transformers' `generate` calls: its arguments, processors and
criteria, our logits.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.decode.decoder import Decoder

# Inputs of a model that generate always gives, and that change no text.
HARMLESS = ("use_cache", "logits_to_keep", "return_dict", "tokenizer")


class LeftToTorchError(ValueError):
    """What the model's own loop does, and ours does not."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is what the decoder does not do; the model's own generate does"
        )


def tensor_of(input_ids: Any) -> Tensor:
    """Numbers of tokens in any form; raises where a text was not made tokens."""
    try:
        return torch.as_tensor(input_ids)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            "input_ids are the numbers of tokens, as a tokenizer makes them of a text; "
            f"got {input_ids!r:.40}"
        ) from None


def check_texts(input_ids: Tensor) -> None:
    """Raises where they are not the tokens of some texts."""
    whole = input_ids.dtype in (torch.int64, torch.int32)
    if input_ids.ndim != 2 or not whole or not input_ids.numel():
        raise ValueError(
            f"input_ids are whole numbers of [texts, tokens], at least one each; got {input_ids.dtype} "
            f"{tuple(input_ids.shape)}"
        )


def prompts_of(
    input_ids: Tensor, attention_mask: Tensor | None, vocabulary: int
) -> list[list[int]]:
    """The tokens of every text without the padding before them."""
    check_texts(input_ids)
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= vocabulary:
        raise ValueError(
            f"tokens are 0..{vocabulary - 1}, got {low if low < 0 else high}"
        )
    if attention_mask is None:
        return input_ids.tolist()
    try:
        attention_mask = torch.as_tensor(attention_mask)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"an attention_mask is 1 for each token and 0 for padding, got {attention_mask!r:.40}"
        ) from None
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"an attention_mask has the shape of input_ids, {tuple(input_ids.shape)}, got {tuple(attention_mask.shape)}"
        )
    # Padding is allowed on the left only: no 1 may be followed by a 0.
    mask = attention_mask != 0
    if not bool(mask[:, -1].all()) or bool((mask[:, :-1] & ~mask[:, 1:]).any()):
        raise ValueError(
            "the attention_mask hides tokens between others or at the end; pad texts on the left"
        )
    return [ids[keep].tolist() for ids, keep in zip(input_ids, mask, strict=True)]


def decode(
    decoder: Decoder,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Greedy search or sampling, as transformers does them."""
    _check(generation_config, input_ids, model_kwargs)
    texts = prompts_of(
        input_ids,
        model_kwargs.get("attention_mask"),
        decoder.network.architecture.vocabulary,
    )
    # max_length counts padding; the cache holds texts without it. The last token is
    # never fed back, hence −1.
    lengths = list(map(len, texts))
    longest, length = max(lengths), generation_config.max_length
    decoder.check_length(
        longest
        if length is None
        else max(longest, longest + length - input_ids.shape[1] - 1)
    )
    decoder.room_for(len(texts), longest)
    logits = torch.cat([decoder.prompt(slot, text) for slot, text in enumerate(texts)])
    ends = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    unfinished = torch.ones(len(texts), dtype=torch.bool)
    kept: tuple[list[Tensor], list[Tensor]] = ([], [])
    while True:
        # Processors may write to the scores, and the raw logits are returned as well.
        scores = logits_processor(input_ids, logits.clone())
        kept[0].append(scores)
        kept[1].append(logits)
        if generation_config.do_sample:
            tokens = torch.multinomial(scores.softmax(-1), 1).squeeze(1)
        else:
            tokens = scores.argmax(-1)
        # A text that has ended is filled with padding while the others go on.
        if ends:
            tokens = torch.where(
                unfinished, tokens, generation_config._pad_token_tensor
            )
        input_ids = torch.cat([input_ids, tokens[:, None]], 1)
        if streamer is not None:
            streamer.put(tokens)
        unfinished &= ~stopping_criteria(input_ids, scores)
        if not bool(unfinished.any()):
            break
        # Nobody asked for them, and each is as large as the vocabulary.
        if not generation_config.return_dict_in_generate:
            kept[0].clear()
            kept[1].clear()
        slots = range(len(texts))
        logits = decoder.run(slots, lengths, tokens.tolist(), slots)
        lengths = [length + 1 for length in lengths]
    if streamer is not None:
        streamer.end()
    return _result(input_ids, kept, generation_config)


def _check(config: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
    # A setting that is ignored would change the text without a word, so each is refused.
    if config.num_beams and config.num_beams > 1:
        raise LeftToTorchError(f"num_beams={config.num_beams}")
    if config.return_dict_in_generate and (
        config.output_attentions or config.output_hidden_states
    ):
        raise LeftToTorchError("a result with attentions and hidden states")
    given = {
        name: value
        for name, value in model_kwargs.items()
        if not (value is None or name in HARMLESS)
        and not (value is False and name.startswith("output_"))
    }
    mask = given.pop("attention_mask", None)
    # transformers passes an empty cache by default. One that cannot tell its length
    # counts as filled: ignoring it would continue another text.
    cache = given.pop("past_key_values", None)
    if cache is not None and getattr(cache, "get_seq_length", lambda: 1)():
        raise LeftToTorchError("going on from past_key_values")
    # cache_position is of older versions of transformers, and counts padding, too.
    for name, seen in (("position_ids", mask), ("cache_position", None)):
        places = given.pop(name, None)
        if places is not None and not _are_in_order(places, input_ids, seen):
            raise LeftToTorchError(f"a text with other {name} than 0, 1, 2, …")
    for name in given:
        raise LeftToTorchError(f"the input {name}")


def _are_in_order(places: Tensor, input_ids: Tensor, mask: Tensor | None) -> bool:
    """Whether each text counts its tokens from 0; what padding has does not matter."""
    seen = torch.ones_like(input_ids) if mask is None else (mask != 0).long()
    # Texts that count alike may share a row.
    try:
        places = places.to(input_ids.device).expand_as(input_ids)
    except RuntimeError:
        return False
    return bool(((places == seen.cumsum(-1) - 1) | (seen == 0)).all())


def _result(
    input_ids: Tensor, kept: tuple[list[Tensor], list[Tensor]], config: Any
) -> Any:
    if not config.return_dict_in_generate:
        return input_ids
    # Imported by name, so that tersify does not depend on transformers.
    made: Any = importlib.import_module("transformers.generation.utils")
    return made.GenerateDecoderOnlyOutput(
        sequences=input_ids,
        scores=tuple(kept[0]) if config.output_scores else None,
        logits=tuple(kept[1]) if config.output_logits else None,
    )
