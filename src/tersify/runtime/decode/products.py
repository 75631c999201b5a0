"""Matrices that read the same vectors, packed as one where that costs no bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.decode.coded import Coded, coded
from tersify.runtime.decode.source import Matrix
from tersify.runtime.engine import Kernels


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Some rows of a product as one kernel runs them."""

    weights: Any
    epilogue: Any
    int8: bool
    rows: int
    row_scale: Tensor | None
    columns: list[float] | None


@dataclass(frozen=True, kw_only=True)
class Product:
    """A linear layer, or several that read the same input: their outputs lie one behind
    the other.
    """

    parts: tuple[Packed, ...]
    int8_names: frozenset[str] = frozenset()  # of the layers that see vectors of 8 bits

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def emit(self, kernels: Kernels, engine: Any, value: int, tokens: int) -> int:
        made = [self._emit(part, kernels.module, engine, value) for part in self.parts]
        if len(made) == 1:
            return made[0]
        # [1, 1, tokens, rows] of each part, joined along the rows of every token.
        rows = [
            engine.view(each, tokens, (part.rows, 1, 1))
            for each, part in zip(made, self.parts, strict=True)
        ]
        return engine.view(engine.concatenate(rows), 1, (1, tokens, self.rows))

    def _emit(self, part: Packed, module: Any, engine: Any, value: int) -> int:
        # W · diag(c) · x = W · (c ∘ x): factors of columns go to the input.
        if part.columns is not None:
            value = module.scale_columns(engine, value, part.columns)
        if part.int8:
            return engine.linear_i8(value, part.weights, part.epilogue)
        return module.linear_rows(engine, value, part.weights, part.epilogue)


def pack_product(
    kernels: Kernels, names: Sequence[str], matrices: Sequence[Matrix], precision: str
) -> Product:
    """Matrices that take the same input, packed as one product where their kernels are
    the same, else one by one.
    """
    found, int8 = [], []
    for name, matrix in zip(names, matrices, strict=True):
        weight = coded(name, matrix)
        if matrix.rounds and weight.codes is None:
            raise ValueError(
                f"{name!r} rounds its inputs to 8 bits and must have weights of few levels"
            )
        # A layer that rounds its inputs itself gets int8 whatever was asked for: that
        # is what it computes.
        int8.append(weight.codes is not None and (precision == "int8" or matrix.rounds))
        found.append(weight.in_steps() if int8[-1] else weight.for_floats())
    # One product reads the input once and starts the threads once.
    biases = [matrix.bias for matrix in matrices]
    if len(set(int8)) == 1 and _fit_together(found):
        parts = [_packed(kernels, found, biases, int8[0])]
    else:
        each = zip(found, biases, int8, strict=True)
        parts = [_packed(kernels, [w], [bias], steps) for w, bias, steps in each]
    # The self-check rounds the inputs of these layers in the model, too.
    in_int8 = [name for name, steps in zip(names, int8, strict=True) if steps]
    return Product(parts=tuple(parts), int8_names=frozenset(in_int8))


def _bits(levels: set[float]) -> int:
    """Of one weight of such levels; plain floats have none."""
    if not levels:
        return 32
    if levels <= {-1.0, 0.0, 1.0}:
        return 2
    if len(levels) <= 16:
        return 4
    if len(levels) <= 256:
        return 8
    # More levels than a byte can name: worse than anything, so nothing is joined.
    return 64


def _fit_together(found: Sequence[Coded]) -> bool:
    """Whether one matrix of all rows needs no more bits than each for itself."""
    # Factors of columns are applied to the input, which all rows share.
    if any(weight.column_scale is not None for weight in found):
        return len(found) == 1
    each = [set(weight.level_list()) for weight in found]
    together: set[float] = set().union(*each)
    # Otherwise rows of 2 bits would be stored with 4 and read more memory.
    return all(_bits(levels) == _bits(together) for levels in each)


def _packed(
    kernels: Kernels,
    found: Sequence[Coded],
    biases: Sequence[Tensor | None],
    int8: bool,
) -> Packed:
    module, rows = kernels.module, sum(weight.rows for weight in found)
    scale = _joined([(w.row_scale, w.rows) for w in found], 1.0)
    shift = _joined([(b, w.rows) for b, w in zip(biases, found, strict=True)], 0.0)
    # The kernels take both lists or none.
    epilogue = module.Epilogue()
    if scale is not None or shift is not None:
        epilogue = module.Epilogue(
            scale=(torch.ones(rows) if scale is None else scale).tolist(),
            shift=(torch.zeros(rows) if shift is None else shift).tolist(),
        )
    if found[0].dense is not None:
        dense = [weight.dense for weight in found if weight.dense is not None]
        weights = module.pack_rows(
            kernels.workspace, torch.cat(dense).contiguous().numpy()
        )
    else:
        codes, levels = _same_codes(found)
        if int8:
            weights = module.pack_codes_i8(
                kernels.workspace, codes.numpy(), list(map(int, levels))
            )
        else:
            weights = module.pack_row_codes(kernels.workspace, codes.numpy(), levels)
    columns = found[0].column_scale
    return Packed(
        weights=weights,
        epilogue=epilogue,
        int8=int8,
        rows=rows,
        row_scale=scale,
        columns=None if columns is None else columns.tolist(),
    )


def _same_codes(found: Sequence[Coded]) -> tuple[Tensor, list[float]]:
    """The codes of all rows under one list of levels."""
    levels = found[0].level_list()
    if any(weight.level_list() != levels for weight in found):
        levels = sorted({level for weight in found for level in weight.level_list()})
    parts = []
    for weight in found:
        assert weight.codes is not None
        if weight.level_list() == levels:
            parts.append(weight.codes)
        else:
            # Old code → place of its level in the common list.
            places = torch.tensor(
                [levels.index(level) for level in weight.level_list()],
                dtype=torch.uint8,
            )
            parts.append(places[weight.codes.int()])
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).contiguous(), levels


def _joined(
    given: Sequence[tuple[Tensor | None, int]], missing: float
) -> Tensor | None:
    # Without any factor or bias the kernel skips the step altogether.
    if all(each is None for each, _ in given):
        return None
    filled = [
        torch.full((rows,), missing)
        if each is None
        else each.detach().float().expand(rows)
        for each, rows in given
    ]
    return torch.cat(filled)
