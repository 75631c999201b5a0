"""Windows of token numbers from what people have: tensors, lists, or texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tersify.lab.language import LENGTH, tokens_of, windows_of

TEXT_WINDOWS = 64  # that are cut from texts, evenly
REMEDY = "give windows × tokens, such as a tensor of shape (64, 512), or texts"


def checked_windows(given: Any) -> Tensor | list[str]:
    """Whole numbers, windows × tokens; texts stay texts until there is a tokenizer."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, (Tensor, np.ndarray)):
        return _checked(torch.as_tensor(given))
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        given = [given]
    every = list(given)
    if not every:
        raise ValueError(f"calibration holds no window; {REMEDY}")
    if all(isinstance(each, str) for each in every):
        return every
    if not any(isinstance(each, (Iterable, Mapping)) for each in every):
        return _checked(_tensor(every))
    windows = [_checked(_tensor(each)) for each in every]
    lengths = sorted({window.shape[1] for window in windows})
    if len(lengths) > 1:
        raise ValueError(
            f"calibration holds windows of {lengths[0]} to {lengths[-1]} tokens; cut them to one length"
        )
    return torch.cat(windows)


def _tensor(each: Any) -> Tensor:
    if isinstance(each, Mapping) and "input_ids" in each:
        each = each["input_ids"]
    try:
        return torch.as_tensor(each)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"calibration holds a {type(each).__name__} that is no list of token numbers; {REMEDY}"
        ) from None


def _checked(ids: Tensor) -> Tensor:
    whole = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    if not whole:
        raise ValueError(
            f"token numbers are whole, got {str(ids.dtype).removeprefix('torch.')}; {REMEDY}"
        )
    if ids.ndim not in (1, 2, 3) or not ids.numel() or ids.shape[-1] < 2:
        raise ValueError(
            f"calibration of shape {tuple(ids.shape)} is no windows of tokens; {REMEDY}"
        )
    return ids.detach().long().reshape(-1, ids.shape[-1])


def windows_for(model: Any, given: Tensor | list[str]) -> Tensor:
    """The windows for a model, on its device: texts are cut by its own tokenizer."""
    windows = given if isinstance(given, Tensor) else _cut(model, given)
    tokens = model.get_input_embeddings().num_embeddings
    low, high = int(windows.min()), int(windows.max())
    if low < 0 or high >= tokens:
        raise ValueError(
            f"calibration has token numbers {low} to {high}, and the model has {tokens} tokens; use its own tokenizer"
        )
    return windows.to(model.device)


def _cut(model: Any, texts: list[str]) -> Tensor:
    from transformers import AutoTokenizer

    where = str(model.name_or_path)
    try:
        if not Path(where).is_dir():
            raise OSError
        tokenizer = AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"calibration is text, and {where!r} has no tokenizer; give windows of token numbers"
        ) from None
    ids = torch.cat([tokens_of(tokenizer, text).long() for text in texts])
    if len(ids) < 2:
        raise ValueError(f"calibration is text of {len(ids)} tokens; give more of it")
    most = getattr(model.config, "max_position_embeddings", None) or LENGTH
    return windows_of(ids, TEXT_WINDOWS, min(LENGTH, most, len(ids)))
