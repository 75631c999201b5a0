"""The walk over the matrices of a network: statistics, the constant of all steps, then
matrix by matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tersify.calibration import Calibration
from tersify.compensated.folder import Folder, Measured
from tersify.compensated.groups import Grouped
from tersify.compensated.matrices import Matrix, in_parts, matrices_of
from tersify.compensated.partial import digest_of
from tersify.compensated.priced import PricedTable, priced_levels
from tersify.compensated.rates import constant_for, entropy_bits_by_scale, sample_of
from tersify.compensated.settings import Compensation
from tersify.compensated.statistics import Statistics, mirrored, statistics_of
from tersify.compensated.steps import Steps, rounded
from tersify.compensated.tables import Pruned, Table, Ternary
from tersify.compensated.triangular import compensate, spread_of
from tersify.compensated.tune import tuned
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.blocks import METADATA as BLOCKS
from tersify.tensor.model import tied

HESSIAN_BYTES = 2 << 30  # of all matrices that one pass over the batches looks at
STEP_BITS = 3.5  # that the step of a row or column takes in the file
# matrices that are compensated to see what that adds to the bits of plain rounding
TRIED = 6
HEAD_ROWS = 8  # times its columns: a linear layer of so many rows tells tokens apart
# of what the rule says that rows of an embedding matter: most of them are tokens seldom
# met
EMBEDDING_FRACTION = 0.4
FEWEST = 1e-3  # of the mean Fisher information: no row matters less


Tell = Callable[[str, int, int], None]  # what is done, how much of it, of how much


def compensate_(
    model: nn.Module,
    settings: Compensation,
    *,
    calibration: Calibration | Iterable[tuple[Any, Any]],
    tuning: Iterable[tuple[Any, Any]] | None = None,
    frequencies: Tensor | None = None,
    folder: str | Path | None = None,
    bf16: bool = False,
    hessian_bytes: int = HESSIAN_BYTES,
    tell: Tell = lambda what, done, all_of_it: None,
) -> CompressedModel:
    """Compress the matrices of a trained network in place, without training, and give
    its packed form.

    Every matrix is rounded column by column, and the columns not yet rounded take over
    what that did to the outputs, as the inputs of the calibration batches go together
    (GPTQ). Steps are c·U_jj/√F, with U_jj the spread of a column, F the Fisher
    information of a row and one constant c for all matrices: so bits go where the loss
    needs them.

    Args:
        model: any module of linear layers and embeddings, such as a causal language model of transformers.
        settings: what the matrices become.
        calibration: batches (inputs, targets) and the loss; `next_token_loss` is that of a language model.
        tuning: batches for the settings' `tune_steps`; larger ones serve best, their targets are not looked at, and
            without them those of the calibration are used.
        frequencies: how often each token occurs, for the embedding of tokens; without, as often as the batches hold it.
        folder: keeps what is finished, so that a run that was stopped goes on there; its batches must be the same.
        bf16: compute the passes over the batches in bf16.
        hessian_bytes: the most memory of the Hessians of one pass; a larger network takes several passes.
        tell: told what is done, and how much of it.
    """
    batches = Calibration.of(calibration)
    matrices = [
        m for m in matrices_of(model) if settings.embeddings or m.embedding is None
    ]
    data = {} if folder is None else _digests(batches, frequencies, bf16=bf16)
    with torch.no_grad(), Folder(folder, settings, matrices, data) as kept:
        for part in in_parts(
            [m for m in matrices if not kept.has_statistics(m)], hessian_bytes
        ):
            _measure(
                model, part, settings, batches, kept, frequencies, bf16=bf16, tell=tell
            )
        constant = _constant(settings, matrices, kept) if settings.file_bits else 0.0
        made: dict[str, CompressedTensor] = {}
        for number, matrix in enumerate(matrices):
            packed = kept.packed(matrix)
            if packed is None:
                packed, latents = _compressed(
                    settings, matrix, kept.statistics(matrix), constant
                )
                kept.put_packed(matrix, packed, latents)
            made[matrix.name] = packed
            tell("matrices", number + 1, len(matrices))
        if settings.tune_steps:
            found = tuned(
                model,
                matrices,
                made,
                settings,
                batches if tuning is None else Calibration.of(tuning),
                latents=kept.latents,
                bf16=bf16,
                tell=tell,
            )
            made = found.matrices
            for name, vector in found.vectors.items():
                model.get_parameter(name).copy_(vector)
        for matrix in matrices:
            dense = made[matrix.name].to_dense()
            matrix.parameter.copy_(dense.reshape(matrix.parameter.shape))
    return _network(model, settings, matrices, made)


def _digests(
    batches: Calibration, frequencies: Tensor | None, *, bf16: bool
) -> dict[str, Any]:
    """What the statistics are of beside the matrices."""
    return {
        "batches": digest_of(batches.pairs()),
        "frequencies": digest_of([(frequencies, None)]),
        "bf16": bf16,
    }


def _measure(
    model: nn.Module,
    matrices: list[Matrix],
    settings: Compensation,
    batches: Calibration,
    kept: Folder,
    frequencies: Tensor | None,
    *,
    bf16: bool,
    tell: Tell,
) -> None:
    """One pass over the batches, and the statistics of these matrices in the folder."""
    sums = kept.partial()
    found = statistics_of(model, matrices, batches, bf16=bf16, kept=sums, tell=tell)
    for matrix in matrices:
        rows, hessian = _importance(matrix, found.pop(matrix.name), frequencies)
        kept.put_statistics(matrix, rows, spread_of(hessian, settings.damping))
    if sums is not None:
        sums.remove()


def _importance(
    matrix: Matrix, found: Statistics, frequencies: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What each row matters to the loss, and the Hessian of a row of importance one."""
    if matrix.embedding is None:
        hessian = mirrored(found.hessian) / found.tokens
        rows = found.fisher / found.tokens
        if len(rows) > HEAD_ROWS * matrix.weight.shape[1]:
            rows = _flatter(rows)
        return rows.clamp(min=max(FEWEST * float(rows.mean()), 1e-30)), hessian
    assert found.gram is not None
    if found.counts is None:
        even = torch.full_like(found.fisher, 1 / len(found.fisher))
        return EMBEDDING_FRACTION * even, mirrored(found.gram) / found.tokens
    counts = (
        found.counts if frequencies is None else frequencies.to(found.counts.device)
    ).float()
    if counts.shape != found.counts.shape:
        raise ValueError(
            f"frequencies must be one for each of {len(found.counts)} tokens, got {tuple(counts.shape)}"
        )
    hessian = mirrored(found.gram) / found.counts.sum()
    if matrix.linear is not None:
        hessian = hessian + mirrored(found.hessian) / found.tokens * (
            found.fisher.sum() / found.tokens
        )
    fraction = counts + 0.5  # a token that was not met can be met
    return EMBEDDING_FRACTION * _flatter(fraction / fraction.sum()), hessian


def _flatter(rows: Tensor) -> Tensor:
    """The square root, with the same sum: what few batches say about tokens is believed
    half-way.
    """
    root = rows.clamp(min=1e-30).sqrt()
    return root * (rows.sum() / root.sum())


def _constant(settings: Compensation, matrices: list[Matrix], kept: Folder) -> float:
    """The constant of all steps that gives the wanted bits.

    Plain rounding of some rows tells how the bits of each matrix depend on it; what
    compensation adds to them is seen on a few matrices.
    """
    known = kept.constant()
    if known is not None:
        return known
    samples = []
    for matrix in matrices:
        found = kept.statistics(matrix)
        some = sample_of(matrix.weight)
        unit = found.spread[None] / found.rows[some].sqrt()[:, None]
        samples.append((matrix.weight[some].float() / unit, matrix.weight.numel()))
    weights = sum(count for _, count in samples)
    steps = STEP_BITS * sum(sum(matrix.weight.shape) for matrix in matrices) / weights

    def bits_at(constant: float, added: float = 0.0) -> float:
        total = sum(
            n * entropy_bits_by_scale(_ranks(z / constant, settings))
            for z, n in samples
        )
        return total / weights + steps + added

    start = float(torch.stack([z.square().mean().sqrt() for z, _ in samples]).median())
    constant = constant_for(settings.file_bits, bits_at, start)
    tried = sorted({round(i * (len(matrices) - 1) / (TRIED - 1)) for i in range(TRIED)})
    tried = [
        i
        for i in tried
        if len(matrices[i].weight) <= HEAD_ROWS * matrices[i].weight.shape[1]
    ]
    added = 0.0
    for i in tried:
        packed, _ = _compressed(
            settings, matrices[i], kept.statistics(matrices[i]), constant
        )
        ranks = _ranks_of(packed)
        ranks = ranks.T if matrices[i].transposed else ranks
        plain = entropy_bits_by_scale(_ranks(samples[i][0] / constant, settings))
        added += (entropy_bits_by_scale(ranks) - plain) / len(tried)
    constant = constant_for(settings.file_bits - added, bits_at, constant)
    kept.put_constant(constant)
    return constant


def _ranks(values: Tensor, settings: Compensation) -> Tensor:
    """For each number of steps that of its level, counted from zero up and down."""
    if settings.code == "steps":
        return rounded(values, settings.dead_zone, settings.most_steps)
    return priced_levels(values, settings.table_levels).ranks(values)


def _ranks_of(packed: CompressedTensor) -> Tensor:
    assert packed.codebook is not None
    order = packed.codebook.argsort()
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order))
    return (ranks - ranks[0])[packed.codes.int()]


def _compressed(
    settings: Compensation, matrix: Matrix, found: Measured, constant: float
) -> tuple[CompressedTensor, Tensor | None]:
    """The packed matrix, and what was rounded where tuning will want it."""
    if settings.file_bits:
        keeps = settings.tune_codes and settings.tune_steps > 0
        grid = _grid(
            settings,
            constant / found.rows.sqrt(),
            keep_latents=keeps and matrix.embedding is None,
        )
        compensate(matrix.weight, found.upper, grid)
        latents = grid.latents
        if latents is not None and matrix.transposed:
            latents = latents.T.contiguous()
        return matrix.as_stored(grid.packed().cpu()), latents
    if settings.code == "prune":
        pruned = Pruned(settings.sparsity)
        compensate(matrix.weight, found.upper, pruned)
        return matrix.as_stored(pruned.packed().cpu()), None
    groups = _groups_of(settings, matrix)
    fisher = found.rows.repeat_interleave(groups)
    is_ternary = settings.code == "ternary"
    code = Ternary() if is_ternary else Table(int(settings.bits), fisher)
    if groups == 1:
        compensate(matrix.weight, found.upper, code)
        return matrix.as_stored(code.packed().cpu()), None
    grouped = Grouped(code, settings.groups)
    compensate(matrix.weight, found.upper, grouped, block_columns=settings.groups)
    return grouped.packed().cpu(), None


def _groups_of(settings: Compensation, matrix: Matrix) -> int:
    """Of a row; one where groups do not fit."""
    columns, size = matrix.weight.shape[1], settings.groups
    if not size or columns % size or matrix.transposed:
        return 1
    return columns // size


def _grid(
    settings: Compensation, rows: Tensor, *, keep_latents: bool
) -> Steps | PricedTable:
    if settings.code == "table":
        return PricedTable(rows, most=settings.table_levels, keep_latents=keep_latents)
    return Steps(
        rows,
        dead_zone=settings.dead_zone,
        most=settings.most_steps,
        keep_latents=keep_latents,
    )


def _network(
    model: nn.Module,
    settings: Compensation,
    matrices: list[Matrix],
    made: dict[str, CompressedTensor],
) -> CompressedModel:
    tensors, aliases = tied(model.state_dict(keep_vars=True))
    every: dict[str, CompressedTensor | Tensor] = {
        name: tensor.detach() for name, tensor in tensors.items()
    }
    every |= made
    metadata: dict[str, Any] = {"compensation": settings.to_mapping()}
    if blocks := [name for name, packed in made.items() if len(packed.shape) == 3]:
        metadata[BLOCKS] = blocks
    return CompressedModel(every, aliases=aliases, metadata=metadata)
