"""Where a prepared weight waits for its module, and how long it stays true."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.utils.parametrize import ParametrizationList


class Slot:
    """A weight that was computed before it is read, and that holds while nothing it was
    made of has changed.

    What it was made of are the latent and every parameter and buffer of its transforms.
    Torch counts the edits in place of each of them, be they the optimizer's,
    `load_state_dict`'s or the user's; a tensor put in another's place is another
    object, or lies elsewhere. An edit through `.data` passes unseen, as it does by
    autograd.

    `castable` says that the weight belongs to a layer for which autocast casts it. Then
    it is made at once in the type that autocast made of the last one, `cast`: the same
    numbers that autocast would make, without a call for each layer.
    """

    __slots__ = (
        "_asked",
        "_latent",
        "_made_in",
        "_seen",
        "_sources",
        "_weight",
        "cast",
        "castable",
    )

    def __init__(self) -> None:
        self._sources: list[tuple[dict[str, Any], str]] = []
        self._latent: Tensor | None = None
        self._weight: Tensor | None = None
        self._seen: list[tuple[dict[str, Any], str, Tensor, int, int]] = []
        self._made_in: torch.dtype | None = None
        # True at the start, so that the first step prepares and finds out who reads.
        self._asked = True
        self.castable = False
        self.cast: torch.dtype | None = None

    def watch(self, chain: ParametrizationList) -> None:
        """From here on the weight is made of all that this chain holds, but for what a
        transform says is `beside_the_weight`.
        """
        self._sources = [
            (held, key)
            for module in chain.modules()
            for held in (module._parameters, module._buffers)
            for key, tensor in held.items()
            if tensor is not None
            and key not in getattr(module, "beside_the_weight", ())
        ]

    def fill(self, weight: Tensor, latent: Tensor) -> None:
        self._weight, self._latent = weight, latent
        # A weight that is the latent itself is never out of date.
        sources = () if weight is latent else self._sources
        self._seen = [
            (held, key, t := held[key], t._version, t.data_ptr())
            for held, key in sources
        ]
        self._made_in = None if weight.dtype is latent.dtype else weight.dtype

    def clear(self) -> None:
        self._weight = None

    def take_asked(self) -> bool:
        """Whether the weight was read since the last call of this method."""
        asked, self._asked = self._asked, False
        return asked

    def read(self, latent: Tensor | None) -> Tensor | None:
        """The weight, if it is ready and true for this latent. Every layer asks in
        every step: each look counts.
        """
        self._asked = True
        weight = self._weight
        # Another latent object means that someone has swapped the parameter.
        if weight is None or latent is not self._latent:
            if self.castable and latent is not None:
                # Noted although nothing is ready: the next preparation makes the weight
                # in this type at once.
                self.cast = _autocast_type(latent)
            return None
        for held, key, tensor, version, pointer in self._seen:
            if (
                held[key] is not tensor
                or tensor._version != version
                or tensor.data_ptr() != pointer
            ):
                self._weight = None
                return None
        if self.castable:
            self.cast = _autocast_type(weight)
            # Autocast was switched off or changed since; a half-precision weight would
            # now be wrong in a float32 layer.
            if self._made_in is not None and self._made_in is not self.cast:
                return None
        return weight

    def __deepcopy__(self, memo: dict[int, object]) -> Slot:
        """A copied network has tensors of its own, of which nothing is prepared yet."""
        twin = memo[id(self)] = Slot()
        twin._sources = copy.deepcopy(self._sources, memo)
        twin.castable = self.castable
        return twin


# Of a device's kind it is always the same, and every layer asks in every step.
_has_autocast = functools.cache(torch.amp.is_autocast_available)


def _autocast_type(tensor: Tensor) -> torch.dtype | None:
    device = tensor.device.type
    if not _has_autocast(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def forget_prepared(model: nn.Module) -> None:
    """Every weight of the model is computed anew when it is read: something else than a
    tensor has changed.
    """
    for module in model.modules():
        if isinstance(module, SlottedChain):
            module.slot.clear()


class SlottedChain(ParametrizationList):
    """Torch's list of a weight's parametrizations, which gives the prepared weight
    where there is one.
    """

    slot: Slot

    def __call__(self) -> Tensor:
        if self.training and not is_compiling():
            weight = self.slot.read(self._parameters.get("original"))
            if weight is not None:
                return weight
        return super().__call__()
