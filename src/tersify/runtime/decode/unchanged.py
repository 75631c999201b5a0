"""Whether a model is still what was compiled: its modules, its code and samples of its
weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tersify.runtime.decode.known_code import unknown_part

SAMPLES, SAMPLES_ALONG = (
    16,
    4,
)  # of each tensor: a call should not wait for the memory of all weights


class Snapshot:
    """Of a model when it was compiled."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = _names(model)
        self._versions = _versions(model)
        self._samples = _samples(model)

    def difference(self) -> str | None:
        """What changed, None where nothing that is looked at did."""
        if _versions(self._model) != self._versions:
            return "the model's weights were"
        if not torch.equal(_samples(self._model), self._samples):
            return "the model's weights were"
        if _names(self._model) != self._modules:
            return "the model's layers were"
        found = unknown_part(self._model)
        return None if found is None else f"the model ({found}) was"


def _names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_modules()]


def _tensors(model: nn.Module) -> list[Tensor]:
    tensors = (*model.parameters(), *model.buffers())
    return [x for x in tensors if x.device.type == "cpu"]


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    """What a write to any parameter or buffer changes, unless torch does not see it."""
    # Tensors made in inference mode count no versions.
    return [
        (x.data_ptr(), -1 if x.is_inference() else x._version) for x in _tensors(model)
    ]


def _samples(model: nn.Module) -> Tensor:
    """Some numbers of every tensor, as bytes: `.data` and numpy write without a new
    version.
    """
    by_type: dict[torch.dtype, list[Tensor]] = {}
    with torch.no_grad():
        for tensor in _tensors(model):
            by_type.setdefault(tensor.dtype, []).append(_sample(tensor.detach()))
        # Bytes, because a NaN is not equal to itself.
        parts = [torch.cat(x).view(torch.uint8) for x in by_type.values()]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def _sample(tensor: Tensor) -> Tensor:
    # Without a copy of everything, which flattening another one would be.
    if tensor.is_contiguous():
        flat = tensor.view(-1)
        return flat[:: max(-(-flat.numel() // SAMPLES), 1)]
    steps = [max(-(-size // SAMPLES_ALONG), 1) for size in tensor.shape]
    return tensor[tuple(slice(None, None, step) for step in steps)].reshape(-1)
