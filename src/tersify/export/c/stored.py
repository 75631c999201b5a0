"""Weights as the C source holds them: the smallest of gap lists, packed trits, places in
a table, whole numbers, and floats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GAPS, TRITS, FLOATS, BYTES, NIBBLES = range(5)
TABLE = 16  # levels that four bits tell apart
FAR = 127  # places that one byte without a weight leaps over


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    form: int
    row_weights: int
    stream: bytes = b""
    floats: npt.NDArray[np.float32] | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.stream) + (0 if self.floats is None else 4 * self.floats.size)


def stored(
    array: npt.NDArray[np.float32], *, whole: bool = False, any_row: bool = False
) -> Stored:
    """Of [rows, …]; signs are −1, 0 and 1, and where all are `whole` numbers a byte holds
    one. With `any_row` every row takes as many bytes, so that each can be found.
    """
    rows = array.reshape(len(array), -1)
    forms = _of_signs(rows) if np.isin(rows, (-1, 0, 1)).all() else _of_levels(rows)
    if any_row:
        forms = [made for made in forms if made.form != GAPS]
    width = rows.shape[1]
    if whole:
        stream = rows.astype(np.int8).tobytes()
        forms.append(Stored(form=BYTES, row_weights=width, stream=stream))
    else:
        plain = np.ascontiguousarray(rows)
        forms.append(Stored(form=FLOATS, row_weights=width, floats=plain))
    return min(forms, key=lambda made: made.size_bytes)


def _of_signs(rows: npt.NDArray[np.float32]) -> list[Stored]:
    width = rows.shape[1]
    trits = Stored(form=TRITS, row_weights=width, stream=_trits(rows))
    gaps = list(map(_gaps, rows))
    if max(map(len, gaps)) >= 1 << 16:
        return [trits]
    listed = b"".join(len(row).to_bytes(2, "little") + row for row in gaps)
    return [Stored(form=GAPS, row_weights=width, stream=listed), trits]


def _of_levels(rows: npt.NDArray[np.float32]) -> list[Stored]:
    levels, places = np.unique(rows, return_inverse=True)
    if len(levels) > TABLE:
        return []
    nibbles = places.reshape(rows.shape).astype(np.uint8)
    padded = np.pad(nibbles, ((0, 0), (0, rows.shape[1] % 2)))
    stream = (padded[:, 0::2] | padded[:, 1::2] << 4).tobytes()
    return [
        Stored(form=NIBBLES, row_weights=rows.shape[1], stream=stream, floats=levels)
    ]


def _gaps(row: npt.NDArray[np.float32]) -> bytes:
    """A byte a weight: the zeros before it and its sign; 254 where there are too many
    zeros.
    """
    out = bytearray()
    last = -1
    for place in np.flatnonzero(row):
        gap = int(place) - last - 1
        out += b"\xfe" * (gap // FAR)
        out.append(gap % FAR << 1 | int(row[place] < 0))
        last = int(place)
    return bytes(out)


def _trits(rows: npt.NDArray[np.float32]) -> bytes:
    """Five a byte, the first in the lowest digit; 2 stands for −1."""
    digits = np.where(rows < 0, 2, rows).astype(np.uint8)
    padded = np.pad(digits, ((0, 0), (0, -rows.shape[1] % 5)))
    powers = np.array([1, 3, 9, 27, 81], np.uint16)
    return (padded.reshape(len(rows), -1, 5) * powers).sum(2).astype(np.uint8).tobytes()
