"""Few values of an array found in numpy: slow, and only where the compiled coders are
missing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
SAMPLE = 1024


def find_levels(
    rows: npt.NDArray[np.unsignedinteger], limit: int, codes: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint64], Ints, Ints] | None:
    """The values of each row, how often each occurs, how many a row has; None where a
    row has more than `limit`.
    """
    patterns, counts, per_row = [], [], []
    for row, out in zip(rows, codes.reshape(rows.shape), strict=True):
        # A look at the first elements refuses most tensors without sorting a whole row.
        if len(np.unique(row[:SAMPLE])) > limit:
            return None
        values, places, times = np.unique(row, return_inverse=True, return_counts=True)
        if len(values) > limit:
            return None
        out[:] = places.reshape(-1)
        patterns.append(values.astype(np.uint64))
        counts.append(times)
        per_row.append(len(values))
    return np.concatenate(patterns), np.concatenate(counts), np.array(per_row)
