"""What a C source is written from: its buffers, and its steps with their kernels and
constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tersify.export.c.constants import Floats, Quant
from tersify.export.c.stored import GAPS, TRITS, Stored


@dataclass(eq=False)
class Buffer:
    """A value: its shape, and whether it lies as bytes of a quantization."""

    shape: tuple[int, int, int]
    quant: Quant | None = None
    root: Buffer | None = None  # whose memory it is

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.count * (1 if self.quant is not None else 4)

    @property
    def memory(self) -> Buffer:
        return self if self.root is None else self.root.memory


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    kernel: str
    reads: tuple[Buffer, ...]
    writes: Buffer
    rows: int = 0
    window: tuple[int, ...] = (1, 1, 1, 1, 0, 0, 1, 1)
    groups: int = 1
    weights: Stored | None = None
    a: Floats | None = None
    b: Floats | None = None
    c: Floats | None = None
    low: float = -math.inf
    high: float = math.inf
    mean: tuple[Floats, Floats] | None = None
    mean_ends: tuple[float, float] = (-math.inf, math.inf)
    means: bool = False
    # of bytes: their sums are in whole steps
    mean_steps: Floats | None = None
    zero: int = 0


@dataclass(eq=False)
class Steps:
    """The whole network for one item."""

    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Whether every product of floats is with a sign, so that no kernel rounds
        it.
        """
        return all(
            step.kernel != "conv_f32"
            or (step.weights is not None and step.weights.form in (GAPS, TRITS))
            for step in self.steps
        )
