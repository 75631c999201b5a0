"""Matrices that read the same vectors, packed as one where that costs no bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.decode.source import Matrix
from tersify.runtime.engine import Kernels
from tersify.runtime.weights import Weight, WeightKind, classify

NIBBLE_LEVELS = 16
BYTE_LEVELS = 256


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Some rows of a product as one kernel runs them."""

    weights: Any
    epilogue: Any
    int8: bool
    rows: int
    row_scale: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Product:
    """A linear layer, or several that read the same input: their outputs lie one behind the other."""

    parts: tuple[Packed, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def emit(self, kernels: Kernels, engine: Any, value: int, tokens: int) -> int:
        made = []
        for part in self.parts:
            if part.int8:
                made.append(engine.linear_i8(value, part.weights, part.epilogue))
            else:
                made.append(kernels.module.linear_rows(engine, value, part.weights, part.epilogue))
        if len(made) == 1:
            return made[0]
        rows = [engine.view(each, tokens, (part.rows, 1, 1)) for each, part in zip(made, self.parts, strict=True)]
        return engine.view(engine.concatenate(rows), 1, (1, tokens, self.rows))


def pack_product(kernels: Kernels, names: Sequence[str], matrices: Sequence[Matrix], precision: str) -> Product:
    found = [classify(name, m.weight, m.origin) for name, m in zip(names, matrices, strict=True)]
    groups = (
        [list(range(len(found)))] if _fit_together(found, matrices, precision) else [[i] for i in range(len(found))]
    )
    return Product(
        parts=tuple(_packed(kernels, [found[i] for i in g], [matrices[i] for i in g], precision) for g in groups)
    )


def _int8(weight: Weight, matrix: Matrix, precision: str) -> bool:
    if matrix.rounds and weight.kind is WeightKind.FLOAT:
        raise ValueError("a layer that rounds its inputs to 8 bits must have weights of few levels")
    return weight.kind is not WeightKind.FLOAT and (precision == "int8" or matrix.rounds)


def _levels(weight: Weight, *, int8: bool) -> set[float]:
    """What the kernel finds in the matrix; empty where it keeps every number."""
    if weight.kind is WeightKind.FLOAT:
        return set()
    if weight.kind is WeightKind.SIGN:
        return {-1.0, 0.0, 1.0}
    assert weight.table is not None
    table = (weight.table.double() / weight.step).round() if int8 else weight.table
    return {0.0, *table.tolist()}


def _bits(levels: set[float]) -> int:
    signs = levels <= {-1.0, 0.0, 1.0}
    return (
        32
        if not levels
        else 2
        if signs
        else 4
        if len(levels) <= NIBBLE_LEVELS
        else 8
        if len(levels) <= BYTE_LEVELS
        else 32
    )


def _fit_together(found: Sequence[Weight], matrices: Sequence[Matrix], precision: str) -> bool:
    """Whether one matrix of all rows needs no more bits than each for itself."""
    kinds = [_int8(w, m, precision) for w, m in zip(found, matrices, strict=True)]
    if len(set(kinds)) > 1:
        return False
    each = [_levels(w, int8=kinds[0]) for w in found]
    together: set[float] = set() if not all(each) else set().union(*each)
    return all(_bits(levels) == _bits(together) for levels in each)


def _packed(kernels: Kernels, found: Sequence[Weight], matrices: Sequence[Matrix], precision: str) -> Packed:
    module, rows = kernels.module, sum(len(w.values) for w in found)
    int8 = _int8(found[0], matrices[0], precision)
    scales = [_row_scale(w, w.step if int8 and w.kind is WeightKind.TABLE else 1.0) for w in found]
    scale = (
        None
        if all(s is None for s in scales)
        else torch.cat([_or_ones(s, w) for s, w in zip(scales, found, strict=True)])
    )
    biases = [m.bias for m in matrices]
    shift = (
        None
        if all(b is None for b in biases)
        else torch.cat([_or_zeros(b, w) for b, w in zip(biases, found, strict=True)])
    )
    if int8:
        weights = module.pack_linear_i8(kernels.workspace, _joined([w.whole_steps()[0] for w in found]), False)
    else:
        levels = set().union(*(_levels(w, int8=False) for w in found)) - {0.0}
        weights = module.pack_rows(kernels.workspace, _joined([w.factors for w in found]), sorted(levels))
    epilogue = module.Epilogue(
        scale=[] if scale is None and shift is None else (torch.ones(rows) if scale is None else scale).tolist(),
        shift=[] if scale is None and shift is None else (torch.zeros(rows) if shift is None else shift).tolist(),
    )
    return Packed(weights=weights, epilogue=epilogue, int8=int8, rows=rows, row_scale=scale)


def _joined(values: Sequence[Tensor]) -> Any:
    return (values[0] if len(values) == 1 else torch.cat(list(values))).contiguous().numpy()


def _row_scale(weight: Weight, step: float) -> Tensor | None:
    if weight.row_scale is None:
        return None if step == 1.0 else torch.full((len(weight.values),), step)
    return weight.row_scale.float() * step


def _or_ones(scale: Tensor | None, weight: Weight) -> Tensor:
    return torch.ones(len(weight.values)) if scale is None else scale.expand(len(weight.values))


def _or_zeros(bias: Tensor | None, weight: Weight) -> Tensor:
    return torch.zeros(len(weight.values)) if bias is None else bias.detach().float()
