"""What a C source is written from: its buffers, and its steps with their kernels and
constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tersify.export.c.constants import CLAMP, Floats, Quant
from tersify.export.c.stored import GAPS, TRITS, Stored

Shape = tuple[int, int, int]


@dataclass(eq=False)
class Buffer:
    """A value: items of one shape, one behind the other, as floats, as bytes of a
    quantization, or as numbers of rows.
    """

    shape: Shape
    quant: Quant | None = None
    root: Buffer | None = None  # whose memory it is
    items: int = 1
    ids: bool = False
    rows: int = 0  # of ids: how many the smallest table has that reads them

    @property
    def item_count(self) -> int:
        return math.prod(self.shape)

    @property
    def count(self) -> int:
        return self.items * self.item_count

    @property
    def size_bytes(self) -> int:
        return self.count * (1 if self.quant is not None else 4)

    @property
    def memory(self) -> Buffer:
        return self if self.root is None else self.root.memory


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """The kernel runs for every item of what it writes."""

    kernel: str
    reads: tuple[Buffer, ...]
    writes: Buffer
    rows: int = 0
    window: tuple[int, ...] = (1, 1, 1, 1, 0, 0, 1, 1)
    groups: int = 1
    weights: Stored | None = None
    # of each row, or none: sum · a + b + other · c, where a product or sum of two values
    # is (value · a + b + other) · c + d
    a: Floats | None = None
    b: Floats | None = None
    c: Floats | None = None
    d: Floats | None = None
    multiplies: bool = False
    constant: Floats | None = None  # instead of the other value
    activation: int = CLAMP
    low: float = -math.inf
    high: float = math.inf
    slopes: Floats | None = None
    # bytes behind a curve: their number in 1, that of 0, and their ends
    bytes_behind: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    mean: tuple[Floats, Floats] | None = None
    mean_activation: int = CLAMP
    mean_ends: tuple[float, float] = (-math.inf, math.inf)
    means: bool = False
    # of bytes: their sums are in whole steps
    mean_steps: Floats | None = None
    zero: int = 0
    # of a move: size, low, high and stride of each axis; where it begins; what is filled
    axes: tuple[tuple[int, ...], ...] = ()
    offset: int = 0
    fill: float = 0.0


@dataclass(eq=False)
class Steps:
    """The whole network for one item of the batch."""

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
