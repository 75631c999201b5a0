"""Texts in a cache: tokens go in, logits come out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.decode.network import Network

CHUNK = 128  # tokens of a prompt that run together, at most
MAX_ENGINES = 16  # plans that are kept, the least recently used goes first
FIRST_POSITIONS = 256  # that the cache has room for; it doubles from there

# a number of positions → cosines and sines, [positions, pairs]
Rotation = Callable[[int], tuple[Tensor, Tensor]]


class Decoder:
    """Several texts at a time, each in a slot of its own; a text may be cut back to any
    length.
    """

    def __init__(
        self, network: Network, rotation: Rotation | None, *, context: int, half: bool
    ) -> None:
        a = network.architecture
        self.network = network
        self.context = context
        self._rotation = rotation
        self._cache = network.kernels.module.KeyCache(
            len(a.layers), a.key_heads, a.width, half
        )
        self._engines: OrderedDict[tuple[int, int], Any] = OrderedDict()

    @property
    def cache_bytes(self) -> int:
        return int(self._cache.resident_bytes)

    def check_length(self, positions: int) -> None:
        """Raises where a text is longer than the cache may be."""
        if positions > self.context:
            raise ValueError(
                f"a text of {positions:,} tokens does not fit the cache of {self.context:,}; shorten the prompt, ask "
                "for fewer new tokens, or compile with a larger context"
            )

    def room_for(self, slots: int, positions: int) -> None:
        """Makes the cache larger where it must be."""
        self.check_length(positions)
        if slots <= self._cache.slots and positions <= self._cache.capacity:
            return
        # Doubling keeps the cost of copying the cache proportional to its length.
        wanted = max(FIRST_POSITIONS, self._cache.capacity)
        while wanted < positions:
            wanted *= 2
        self._cache.reserve(slots, min(wanted, self.context))
        if self._rotation is not None:
            cosines, sines = self._rotation(self._cache.capacity)
            self._cache.set_rotation(
                cosines.contiguous().numpy(), sines.contiguous().numpy()
            )
        self.network.kernels.module.release_free_memory()

    def prompt(
        self,
        slot: int,
        tokens: Sequence[int],
        start: int = 0,
        *,
        all_logits: bool = False,
        padding: int = 0,
    ) -> Tensor:
        """The tokens from position `start` on: the logits of the last one, [1,
        vocabulary], or of all. Learned positions begin behind `padding`.
        """
        made = []
        for begin in range(0, len(tokens), CHUNK):
            part = tokens[begin : begin + CHUNK]
            last = begin + len(part) == len(tokens)
            # Parts before the last only fill the cache.
            wanted: Sequence[int] = [len(part) - 1] if last else []
            if all_logits:
                wanted = range(len(part))
            positions = range(start + begin, start + begin + len(part))
            logits = self.run([slot] * len(part), positions, part, wanted, padding)
            if all_logits or last:
                made.append(logits)
        return made[0] if len(made) == 1 else torch.cat(made)

    def run(
        self,
        slots: Sequence[int],
        positions: Sequence[int],
        tokens: Sequence[int],
        wanted: Sequence[int],
        padding: int = 0,
    ) -> Tensor:
        """Some tokens, each of its slot and at its position there: the logits of the
        rows that are wanted.
        """
        a = self.network.architecture
        self.room_for(max(slots) + 1, max(positions) + 1)
        # Without wanted rows the engine still has one output: a hidden vector that
        # nobody reads.
        out = torch.empty(max(len(wanted), 1), a.vocabulary if wanted else a.hidden)
        inputs = [torch.tensor(tokens, dtype=torch.int64)]
        if self.network.positions is not None:
            inputs.append(torch.tensor(positions, dtype=torch.int64) + padding)
        engine = self._engine(len(tokens), len(wanted))
        self._cache.set_rows(list(slots), list(positions), list(wanted) or [0])
        engine.run(
            [(x.data_ptr(), x.numel()) for x in inputs], [(out.data_ptr(), out.numel())]
        )
        return out

    def _engine(self, tokens: int, wanted: int) -> Any:
        key = (tokens, wanted)
        found = self._engines.get(key)
        if found is None:
            found = self._engines[key] = self.network.engine(
                self._cache, tokens, wanted
            )
            self.network.kernels.module.release_free_memory()
            if len(self._engines) > MAX_ENGINES:
                self._engines.popitem(last=False)
        self._engines.move_to_end(key)
        return found
