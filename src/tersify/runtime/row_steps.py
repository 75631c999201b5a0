"""Whole numbers of −127..127 in rows of floats, as a uniform quantizer of channels
leaves them.
"""

from __future__ import annotations

import torch
from torch import Tensor

INT8_HIGH = 127
# of a multiple that a float of 24 bits holds: 127 roundings of it are less
STEP_ERROR = 3e-5


def row_steps(rows: Tensor) -> Tensor | None:
    """One step a row, of which all its numbers are whole multiples; most quantizers give
    the largest the highest code, so the search begins there.
    """
    top = rows.abs().amax(1).double()
    steps = torch.ones_like(top)
    open_rows = top.nonzero().flatten()  # a row of zeros has any step
    for count in range(INT8_HIGH, 0, -1):
        if not len(open_rows):
            return steps
        found = top[open_rows] / count
        multiples = rows[open_rows].double() / found[:, None]
        fits = (multiples - multiples.round()).abs().amax(1) <= STEP_ERROR
        steps[open_rows[fits]] = found[fits]
        open_rows = open_rows[~fits]
    return None if len(open_rows) else steps
