"""What a sparse matrix looks like to a kernel or an accelerator: densities of rows,
tiles and N:M groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tersify.sparse.formats import FORMATS, Array, Entries, Matrix

TILES = (4, 8, 16, 32)
PATTERNS = ((1, 4), (2, 4), (2, 8), (4, 8))


def describe(entries: Entries) -> dict[str, Any]:
    """nnz, rows, tiles, N:M compliance, and the bytes of every format."""
    height, width = entries.shape
    per_row = np.bincount(entries.rows, minlength=height)
    mean = float(per_row.mean()) if height else 0.0
    spread = float(per_row.std()) if height else 0.0
    sizes = {name: Matrix.packed(entries, name).size_bytes for name in FORMATS}
    return {
        "nnz": len(entries.values),
        "density": fraction(len(entries.values), height * width),
        "row_nnz": {
            "mean": mean,
            "std": spread,
            "variation": spread / mean if mean else 0.0,
            "min": int(per_row.min(initial=width)),
            "max": int(per_row.max(initial=0)),
        },
        "block_occupancy": {
            str(tile): fraction(*occupied_tiles(entries, tile)) for tile in TILES
        },
        "n_m": {f"{n}:{m}": n_m_compliance(entries, n, m) for n, m in PATTERNS},
        "format_bytes": sizes,
        "best_format": min(sizes, key=lambda name: sizes[name]),
    }


def fraction(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def tile_counts(entries: Entries, tile: int) -> Array:
    """Non-zeros in each tile×tile tile, row-major; the tiles of a ragged edge count as
    they are.
    """
    height, width = (-(-n // tile) for n in entries.shape)
    keys = (entries.rows // tile) * width + entries.columns // tile
    return np.bincount(keys, minlength=height * width)


def occupied_tiles(entries: Entries, tile: int) -> tuple[int, int]:
    """How many tiles hold anything, and how many there are."""
    counts = tile_counts(entries, tile)
    return int(np.count_nonzero(counts)), len(counts)


def n_m_compliance(entries: Entries, n: int, m: int) -> float:
    """The fraction of the groups of m neighbours in a row with at most n non-zeros."""
    # Groups never cross a row: a last, shorter one counts as it is.
    groups = -(-entries.shape[1] // m)
    counts = np.bincount(
        entries.rows * groups + entries.columns // m,
        minlength=entries.shape[0] * groups,
    )
    return fraction(int((counts <= n).sum()), len(counts))
