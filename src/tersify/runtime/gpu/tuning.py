"""Which tilings a kernel is tried with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tersify.runtime.gpu.launch import Tiling, ceiling

THREADS = (128, 256, 512)
MAX_LOADS = 8  # in flight of a thread: more do not fit its registers
MAX_SUMS = 8  # blocks of rows times eights of vectors: likewise
MAX_PARTS_BYTES = 32 << 10


def candidates(vectors: int) -> Iterator[Tiling]:
    """All that make sense for so many vectors."""
    eights = ceiling(vectors, 8)
    loads = (2, 4, 8) if eights == 1 else (1, 2, 4)
    for row_warps, feature_warps, row_blocks, in_flight in product((1, 2, 4), (2, 4, 8, 16), (1, 2, 4), loads):
        tiling = Tiling(row_warps=row_warps, feature_warps=feature_warps, row_blocks=row_blocks, in_flight=in_flight)
        columns = 1 if vectors == 1 else 8 * eights
        parts = 4 * feature_warps * columns * tiling.rows
        crowded = in_flight * row_blocks > MAX_LOADS or row_blocks * eights > MAX_SUMS or parts > MAX_PARTS_BYTES
        many_rows = row_warps * row_blocks > (2 if vectors == 1 else 8)  # too few blocks for all processors
        if tiling.threads in THREADS and not crowded and not many_rows:
            yield tiling
