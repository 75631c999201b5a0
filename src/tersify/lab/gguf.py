"""GGUF files: read with one sentence where that cannot be done, and as packed models of
the same bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tersify.export.gguf_blocks import Parts, parts_of
from tersify.export.gguf_names import gguf_name, in_order
from tersify.lab.gguf_reader import read_gguf
from tersify.lab.language import language_model, stored
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.blocks import ADDED, METADATA, Joined
from tersify.tensor.compressed import MAX_LEVELS
from tersify.tensor.model import tied


def packed_gguf(path: Path) -> CompressedModel:
    """The language model of a GGUF file, every weight with the bits that llama.cpp
    computes with; blocks of whole numbers stay such.
    """
    tensors = {tensor.name: tensor for tensor in read_gguf(path).tensors}
    model, tokenizer = language_model(path)
    config = model.config.to_dict()
    state, aliases = tied(model.state_dict(keep_vars=True))
    made: dict[str, CompressedTensor | Tensor] = {}
    blocks = []
    for name, parameter in state.items():
        made[name] = parameter.detach()
        found = tensors.get(gguf_name(name) or "")
        parts = (
            None
            if found is None
            else parts_of(found.tensor_type.name, np.asarray(found.data))
        )
        if parts is None or _has_one_scale(parts):
            continue  # `save` finds the levels of the whole matrix
        new = _as_blocks(name, parts, config)
        if new is not None and _same(name, new, parameter.detach()):
            made |= new
            blocks.append(name)
    packed = CompressedModel(made, aliases=aliases, metadata={METADATA: blocks})
    return stored(packed, model, tokenizer)


def _has_one_scale(parts: Parts) -> bool:
    used = (parts.wholes != 0).any(-1)
    return parts.added is None and len(np.unique(parts.scale[used])) <= 1


def _as_blocks(
    name: str, parts: Parts, config: dict[str, Any]
) -> dict[str, CompressedTensor | Tensor] | None:
    whole, at = np.unique(parts.wholes, return_inverse=True)
    if len(whole) > MAX_LEVELS:
        return None
    # code 0 is zero, as everywhere
    order = np.argsort(whole != 0, kind="stable")
    codes = np.argsort(order)[at.reshape(parts.wholes.shape)].astype(np.uint8)

    def turned(array: Any) -> Tensor:
        return in_order(torch.from_numpy(array), name, config, there=False)

    found: dict[str, CompressedTensor | Tensor] = {
        name: CompressedTensor(
            shape=codes.shape,
            codes=turned(codes).contiguous(),
            codebook=torch.from_numpy(whole[order]).float(),
            scale=turned(parts.scale).contiguous(),
        )
    }
    if parts.added is not None:
        found[name + ADDED] = turned(parts.added).contiguous()
    return found


def _same(name: str, new: dict[str, CompressedTensor | Tensor], wanted: Tensor) -> bool:
    """Whether the blocks are the weight: a family whose rows lie in another order is
    stored dense.
    """
    found = Joined(CompressedModel(new, metadata={METADATA: [name]}))[name]
    assert isinstance(found, Tensor)
    return found.shape == wanted.shape and torch.equal(found, wanted)
