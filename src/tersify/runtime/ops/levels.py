"""Numbers become the nearest of a few levels, as training left a layer's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from tersify.runtime.ops.base import Op
from tersify.runtime.ops.rounding import quantized
from tersify.runtime.plan import Quant
from tersify.tensor.inputs import signs

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node

# A plane of signs and one of zeros hold these; 0..2 lies around its middle.
BIT_RANGES = ((-1, 1), (0, 1), (0, 2))


@dataclass(frozen=True, kw_only=True, eq=False)
class Levels(Op):
    """Whole numbers low..high times a scale; without them −1 and +1."""

    kind: ClassVar[str] = "levels"
    quant: Quant | None

    @property
    def fits_bits(self) -> bool:
        return self.quant is None or (self.quant.low, self.quant.high) in BIT_RANGES

    @property
    def in_cpp(self) -> tuple[float, float, float]:
        q = self.quant
        # A scale of zero stands for signs.
        return (0.0, -1.0, 1.0) if q is None else (q.scale, q.low, q.high)

    def of(self, x: Tensor) -> Tensor:
        return signs(x) if self.quant is None else quantized(x, self.quant)

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        return self.of(sources[0])

    def emit(self, emitter: Emitter, node: Node) -> int:
        return emitter.engine.levels(emitter.source(node), self.in_cpp)

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        q = self.quant
        return ["signs" if q is None else f"{q.low}..{q.high} × {q.scale:.3g}"]
