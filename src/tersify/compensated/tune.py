"""Distillation of a compressed network: scales, norms and, where asked, codes learn to
give the outputs of the network as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from tersify.calibration import Calibration
from tersify.compensated.matrices import Matrix
from tersify.compensated.priced import Levels
from tersify.compensated.settings import Compensation
from tersify.compensated.steps import coded_steps, rounded
from tersify.compensated.tables import short
from tersify.modes import eval_mode
from tersify.tensor import CompressedTensor

# a latent moves by so many steps where a scale changes by its fraction
CODES_RATE = 5.0
WARM_UP = 0.05  # of all steps, until the rate is the one that was asked
BETAS = (0.9, 0.99)
SEED = 0
LOGITS_AT_ONCE = 2048  # tokens whose outputs are compared at a time


class Scaled:
    """A matrix whose codes stay: each row's scale becomes (1 + change) of what it was."""

    def __init__(self, packed: CompressedTensor, like: Tensor) -> None:
        assert packed.scale is not None
        self.packed = packed
        self._scale = packed.scale.to(like.device)
        self._shape = like.shape  # groups of columns are an axis of their own
        self._base = packed.to_dense().to(like.device)
        self.change = torch.zeros_like(self._scale).requires_grad_()

    def weight(self) -> Tensor:
        return (self._base * (1 + self.change)).reshape(self._shape)

    def result(self) -> CompressedTensor:
        return replace(self.packed, scale=self._new_scale().cpu())

    def _new_scale(self) -> Tensor:
        return short((self._scale * (1 + self.change)).detach())


class Moving(Scaled):
    """A matrix of steps whose codes move too: gradients pass the rounding as if it were
    not there.
    """

    def __init__(
        self,
        packed: CompressedTensor,
        like: Tensor,
        latents: Tensor,
        settings: Compensation,
    ) -> None:
        super().__init__(packed, like)
        assert packed.codebook is not None
        assert packed.column_scale is not None
        made = packed.codebook[packed.codes.int()].to(like.device)
        start = latents.to(like.device).float()
        self._base = torch.empty(0)
        self._columns = packed.column_scale.to(like.device)
        self._settings = settings
        self._levels = None if settings.code == "steps" else Levels.of(packed)
        # Latents are kept in half precision: one next to a limit may have crossed it.
        same = self._rounded(start) == made
        self.latents = torch.where(same, start, made).requires_grad_()

    def _rounded(self, latents: Tensor) -> Tensor:
        if self._levels is not None:
            return self._levels(latents)
        return rounded(latents, self._settings.dead_zone, self._settings.most_steps)

    def weight(self) -> Tensor:
        still = self.latents.detach()
        made = self._rounded(still) + (self.latents - still)
        return made * self._columns * (self._scale * (1 + self.change))

    def result(self) -> CompressedTensor:
        latents = self.latents.detach().cpu()
        codes, codebook = (
            coded_steps(self._rounded(latents).to(torch.int8))
            if self._levels is None
            else self._levels.coded(self._levels.ranks(latents))
        )
        scale = self._new_scale().cpu()
        return replace(self.packed, codes=codes, codebook=codebook, scale=scale)


class Vector:
    """A norm's weight or a bias: it moves by fractions of its own size."""

    def __init__(self, parameter: Tensor) -> None:
        self._start = parameter.detach()
        size = self._start.square().mean().sqrt()
        self._unit = torch.where(size > 0, size, torch.full_like(size, 0.01))
        self.change = torch.zeros_like(self._start).requires_grad_()

    def weight(self) -> Tensor:
        return self._start + self._unit * self.change

    def result(self) -> Tensor:
        return short(self.weight().detach())


@dataclass(frozen=True, eq=False)
class Tuned:
    """What distillation made of the matrices and of the vectors."""

    matrices: dict[str, CompressedTensor]
    vectors: dict[str, Tensor]


def tuned(
    model: nn.Module,
    matrices: list[Matrix],
    made: Mapping[str, CompressedTensor],
    settings: Compensation,
    calibration: Calibration,
    *,
    latents: Callable[[Matrix], Tensor | None],
    bf16: bool = False,
    tell: Callable[[str, int, int], None] = lambda what, done, all_of_it: None,
) -> Tuned:
    """The packed matrices and the vectors, tuned for the outputs that `model`, which
    still holds its own weights, gives for the calibration batches.

    Rows of embeddings stay: most of them are tokens that no batch holds. Memory is that
    of the dense network twice and of one batch; codes that move take three more.
    """
    moved = _matrices_that_move(matrices, made, settings, latents)
    vectors = {
        name: Vector(p)
        for name, p in model.named_parameters()
        if p.ndim == 1 and p.is_floating_point()
    }
    learning: dict[str, Scaled | Vector] = {**moved, **vectors}
    if not learning:
        return Tuned(dict(made), {})
    still = {name: p.detach() for name, p in model.named_parameters()}
    for m in matrices:
        dense = made[m.name].to_dense().to(m.parameter.device)
        still[m.name] = dense.reshape(m.parameter.shape)
    fractions = [one.change for one in learning.values()]
    steps = [one.latents for one in moved.values() if isinstance(one, Moving)]
    optimizer = torch.optim.Adam(
        [{"params": fractions}, {"params": steps}], betas=BETAS
    )
    device = next(model.parameters()).device
    inputs = _in_turn(calibration)
    with eval_mode(model), torch.enable_grad():
        for step in range(settings.tune_steps):
            progress = (step + 0.5) / settings.tune_steps
            rate = settings.tune_rate * _fraction_of_rate(progress)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.param_groups[1]["lr"] = rate * CODES_RATE
            given = next(inputs)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                with torch.no_grad():
                    wanted = _logits(model(given))
                now = {name: one.weight() for name, one in learning.items()}
                found = _logits(functional_call(model, still | now, (given,)))
            optimizer.zero_grad()
            divergence(found, wanted).backward()
            optimizer.step()
            tell("tuning", step + 1, settings.tune_steps)
    return Tuned(
        {**made, **{name: one.result() for name, one in moved.items()}},
        {name: vector.result() for name, vector in vectors.items()},
    )


def _matrices_that_move(
    matrices: list[Matrix],
    made: Mapping[str, CompressedTensor],
    settings: Compensation,
    latents: Callable[[Matrix], Tensor | None],
) -> dict[str, Scaled]:
    found: dict[str, Scaled] = {}
    for matrix in matrices:
        packed = made[matrix.name]
        if matrix.embedding is not None or packed.scale is None:
            continue
        start = latents(matrix) if settings.tune_codes else None
        found[matrix.name] = (
            Scaled(packed, matrix.parameter)
            if start is None
            else Moving(packed, matrix.parameter, start, settings)
        )
    return found


def divergence(found: Tensor, wanted: Tensor) -> Tensor:
    """The mean of KL(wanted ‖ found) over tokens, in nats."""
    tokens = wanted.shape[:-1].numel()
    total = found.new_zeros((), dtype=torch.float32)
    parts = zip(
        found.flatten(0, -2).split(LOGITS_AT_ONCE),
        wanted.flatten(0, -2).split(LOGITS_AT_ONCE),
        strict=True,
    )
    for one, other in parts:
        total = total + F.kl_div(
            one.float().log_softmax(-1),
            other.float().log_softmax(-1),
            reduction="sum",
            log_target=True,
        )
    return total / tokens


def _fraction_of_rate(progress: float) -> float:
    """A short rise, then half a cosine down to zero."""
    if progress < WARM_UP:
        return progress / WARM_UP
    return 0.5 + 0.5 * math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))


def _in_turn(calibration: Calibration) -> Iterator[Any]:
    """The inputs of the batches without end, each time in another order."""
    every = [inputs for inputs, _ in calibration.pairs()]
    order = torch.Generator().manual_seed(SEED)
    while True:
        for i in torch.randperm(len(every), generator=order).tolist():
            yield every[i]


def _logits(outputs: Any) -> Tensor:
    found: Tensor = outputs.logits if hasattr(outputs, "logits") else outputs
    return found
