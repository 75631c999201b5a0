"""Which tensors of a run lie in which memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tersify.runtime.capture.refusal import refuse
from tersify.runtime.capture.shared_memory import Geometry, Storage
from tersify.runtime.nested import tensors


class Entry:
    """A tensor of the run: its memory, where in it, and the value it had at a version
    of that memory.
    """

    __slots__ = ("geometry", "name", "storage", "tensor", "version")

    def __init__(self, tensor: Tensor, storage: Storage, name: str | None) -> None:
        self.tensor = weakref.ref(tensor)
        self.storage = storage
        self.geometry = Geometry.of(tensor)
        self.name = name
        self.version = storage.version


class Memory:
    """Everything that one run met."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        # memory that depends on inputs; its key is not used again while we refer to it
        self._live: dict[int, tuple[Storage, StorageWeakRef]] = {}
        # memory that was there before the run, or is constant
        self._constant: dict[int, tuple[Storage, Tensor]] = {}
        # constants that the run itself made
        self._made: dict[int, Tensor] = {}

    def add_live(self, tensor: Tensor, name: str) -> None:
        """A tensor whose numbers differ from call to call, and so does whatever shares
        its memory.
        """
        self.track(tensor, Storage(Geometry.of(tensor), name, live=True), name)

    def track(self, tensor: Tensor, storage: Storage, name: str | None) -> Entry:
        if storage.live:
            self._live[storage_id(tensor)] = (
                storage,
                StorageWeakRef(tensor.untyped_storage()),
            )
        entry = self._entries[id(tensor)] = Entry(tensor, storage, name)
        return entry

    def entry(self, tensor: Tensor) -> Entry:
        # An id may be reused after its tensor is gone, hence the weak reference.
        known = self._entries.get(id(tensor))
        if known is not None and known.tensor() is tensor:
            return known
        key = storage_id(tensor)
        # Torch made it without an operation, such as a parameter of a tensor.
        if key in self._live:
            return self.track(tensor, self._live[key][0], None)
        if key not in self._constant:
            storage = Storage(Geometry.of(tensor), None, live=False)
            self._constant[key] = (storage, tensor)
        return self.track(tensor, self._constant[key][0], None)

    def shared(self, tensor: Tensor, inputs: Iterable[Tensor]) -> Storage | None:
        """The memory of the inputs that a result lies in."""
        key = storage_id(tensor)
        return next(
            (self.entry(t).storage for t in inputs if storage_id(t) == key), None
        )

    def keep_constant(self, made: Any, inputs: Iterable[Tensor]) -> None:
        """What depends on no input stays what it is; memory made by this run is
        remembered as such.
        """
        # A view of a parameter is still the parameter's memory, not this run's.
        given = {storage_id(t) for t in inputs}
        for tensor in tensors(made):
            if storage_id(tensor) not in given:
                self._made[storage_id(tensor)] = tensor

    def is_made_here(self, tensor: Tensor) -> bool:
        return storage_id(tensor) in self._made

    def from_outside(self) -> list[Tensor]:
        """What the run read and neither made nor was given, a tensor of each memory."""
        return [
            tensor
            for key, (storage, tensor) in self._constant.items()
            if not storage.live and key not in self._made
        ]


def storage_id(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        kind = str(tensor.layout).removeprefix("torch.")
        raise refuse(
            f"the forward makes a tensor whose memory cannot be seen ({kind})",
            "compile the parts before and after it",
        ) from None
