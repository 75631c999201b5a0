"""Tensors of a file are decoded in a thread while those before them are packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from torch import Tensor

from tersify.runtime.decode.architecture import Architecture, LayerNames
from tersify.tensor import CompressedTensor

Read = CompressedTensor | Tensor
AHEAD = 2  # tensors that wait at most, so that memory stays that of a few


class ReadAhead(Mapping[str, Read]):
    """The same mapping; what is asked for in the order of `names` is often there
    already. Anything else is read when it is asked for.
    """

    def __init__(self, tensors: Mapping[str, Read], names: Iterator[str]) -> None:
        self._tensors = tensors
        self._names = (name for name in names if name in tensors)
        # One: packing has threads of its own, and glibc keeps some memory of each
        # thread that ended.
        self._pool = ThreadPoolExecutor(1)
        self._coming: dict[str, Future[Read]] = {}

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._coming.clear()
        self._pool.shutdown(cancel_futures=True)

    def __getitem__(self, name: str) -> Read:
        self._send()
        coming = self._coming.pop(name, None)
        self._send()
        return self._tensors[name] if coming is None else coming.result()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _send(self) -> None:
        while len(self._coming) < AHEAD:
            name = next(self._names, None)
            if name is None:
                return
            self._coming[name] = self._pool.submit(self._tensors.__getitem__, name)


def reading_order(architecture: Architecture) -> Iterator[str]:
    """The tensors of a network as it packs them; some of the names may not exist."""
    a = architecture
    for layer in a.layers:
        yield from _tensors_of(*_modules_of(layer))
    yield from _tensors_of(a.final_norm, a.embedding)
    yield from _tensors_of(None if a.tied else a.head, a.positions)


def _modules_of(names: LayerNames) -> tuple[str | None, ...]:
    return (
        names.attention_norm,
        *names.queries_keys_values,
        names.attention_out,
        names.inner_norm,
        *names.inner,
        names.out,
        names.query_norm,
        names.key_norm,
        names.before_attention_out,
        names.before_out,
    )


def _tensors_of(*modules: str | None) -> Iterator[str]:
    for module in modules:
        if module is not None:
            yield f"{module}.weight"
            yield f"{module}.bias"
