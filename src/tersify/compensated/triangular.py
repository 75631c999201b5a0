"""Triangular compensation: what rounding a column does to the outputs is taken over by
the columns after it.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

# columns that are rounded before the rest of the matrix hears of it
BLOCK_COLUMNS = 128


class ColumnCode(Protocol):
    """How one column becomes codes. A code sees the columns in their order, each as the
    ones before left it.
    """

    def begin(self, weight: Tensor, spread: Tensor) -> None:
        """The whole matrix, and for each column the spread of its rounding error: U_jj."""

    def block(self, weight: Tensor, spread: Tensor, columns: slice) -> None:
        """The columns that come next, as they are now."""

    def column(self, values: Tensor, index: int) -> Tensor:
        """What the column is rounded to."""


def spread_of(hessian: Tensor, damping: float) -> Tensor:
    """U, upper triangular, with UᵀU the inverse of the damped Hessian (GPTQ, algorithm
    1); double precision.

    A column whose inputs are always zero is independent of the others.
    """
    if not bool(hessian.isfinite().all()):
        raise ValueError(
            "the inputs of a layer are not finite; calibrate with batches on which the network's values stay finite"
        )
    damped = hessian.double().clone()
    diagonal = damped.diagonal()
    mean = diagonal.mean().clamp(min=1e-30)
    diagonal += damping * mean
    for _ in range(8):
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            inverse = torch.cholesky_inverse(lower)
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not failed:
                return upper
        diagonal += damping * mean  # too few tokens for so many columns: more damping
    raise ValueError(
        "the inputs of a layer have no usable covariance; give more calibration tokens or more damping"
    )


@torch.no_grad()
def compensate(
    weight: Tensor,
    upper: Tensor,
    code: ColumnCode,
    *,
    block_columns: int = BLOCK_COLUMNS,
) -> Tensor:
    """The rounded weight (rows × columns), each column rounded by `code` after the
    errors of those before it.

    `upper` is what `spread_of` gave. Errors within a block are passed on column by
    column, and to the rest of the matrix block by block.
    """
    rest = weight.detach().to(torch.float32).clone()
    made = torch.empty_like(rest)
    spread = upper.diagonal().float()
    upper = upper.float()
    columns = rest.shape[1]
    code.begin(rest, spread)
    for first in range(0, columns, block_columns):
        end = min(first + block_columns, columns)
        code.block(rest, spread, slice(first, end))
        # Transposed, so that a column lies in one piece of memory.
        block = rest[:, first:end].T.contiguous()
        errors = torch.empty_like(block)
        for j in range(first, end):
            at = j - first
            rounded = code.column(block[at], j)
            made[:, j] = rounded
            errors[at] = (block[at] - rounded) / spread[j]
            block[at + 1 :].addr_(upper[j, j + 1 : end], errors[at], alpha=-1)
        rest[:, end:].addmm_(errors.T, upper[first:end, end:], alpha=-1)
    return made
