"""A budget for the whole file: bits are chosen by what the coder really writes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tersify.calibration import Calibration
from tersify.compensated.compensation import compensate_
from tersify.compensated.folder import read_json
from tersify.compensated.matrices import matrices_of
from tersify.compensated.partial import digest_of
from tersify.compensated.settings import LEAST_BITS, MOST_BITS, Compensation
from tersify.tensor import CompressedModel

TRIES = 6
SLACK = 0.004  # of the budget that may be left over before another constant is tried
# of the budget that codes may gain while they are tuned, so that tuning is done once
TUNING_GAINS = 0.002
SIZES = "sizes.json"


def compensate_within_(
    model: nn.Module,
    settings: Compensation,
    most_bytes: int,
    *,
    size_of: Callable[[CompressedModel], int],
    folder: str | Path | None = None,
    **given: Any,
) -> CompressedModel:
    """`compensate_` with the finest steps whose file takes at most `most_bytes`.

    One constant for the steps of all matrices spends bits where the loss needs them;
    here it follows from the bytes of the coder and not from an estimate of them. Sizes
    of what was tried are kept in the folder beside the statistics.

    Args:
        model: as for `compensate_`.
        settings: what the matrices become; their bits do not count.
        most_bytes: of the file.
        size_of: the bytes of the file with such a packed form, written by the coder.
        folder: as for `compensate_`.
        given: the rest of what `compensate_` takes.
    """
    if not settings.file_bits:
        raise ValueError(
            f"a budget in bytes is for code steps and for tables with coded_bits, got {settings.code!r}; leave it out"
        )
    with tempfile.TemporaryDirectory(prefix="budget-") as own:
        place = Path(own if folder is None else folder)
        search = _Search(model, most_bytes, size_of, place, given)
        bits = 8 * most_bytes / max(1, search.weights)
        if settings.tune_steps:
            plain = replace(settings, tune_steps=0)
            bits, _ = search.fitting(plain, bits, most_bytes * (1 - TUNING_GAINS))
        bits, packed = search.fitting(settings, bits, most_bytes)
        return packed or search.compressed(settings.with_file_bits(bits))


class _Search:
    """Networks of several bits, each made from the weights as they were."""

    def __init__(
        self,
        model: nn.Module,
        most_bytes: int,
        size_of: Callable[[CompressedModel], int],
        place: Path,
        given: dict[str, Any],
    ) -> None:
        self.model, self.most_bytes, self.size_of = model, most_bytes, size_of
        self.place, self.given = place, given
        # sizes are of codes that these batches moved
        self._tuning = ""
        if given.get("tuning") is not None:
            tuning = given["tuning"] = Calibration.of(given["tuning"])
            self._tuning = digest_of(tuning.pairs())
        self.weights = sum(matrix.weight.numel() for matrix in matrices_of(model))
        self._before = {
            name: p.detach().clone() for name, p in model.named_parameters()
        }
        self._sizes: dict[str, int] = {}
        if (place / SIZES).is_file():
            self._sizes = read_json(place / SIZES)

    @torch.no_grad()
    def compressed(self, settings: Compensation) -> CompressedModel:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(self._before[name])
        return compensate_(self.model, settings, folder=self.place, **self.given)

    def fitting(
        self, settings: Compensation, bits: float, limit: float
    ) -> tuple[float, CompressedModel | None]:
        """The most bits whose file fits, and what is packed with them where that was
        made last.
        """
        best, size, too_large = 0.0, 0, 0
        for _ in range(TRIES):
            bits = min(max(bits, LEAST_BITS), MOST_BITS)
            size, packed = self._size(settings.with_file_bits(bits))
            if size <= limit:
                best, too_large = max(best, bits), 0
                if size >= limit * (1 - SLACK) or bits == MOST_BITS:
                    return bits, packed
            elif bits == LEAST_BITS:
                break
            else:
                too_large += 1
            # Halfway into what may be left over. Where a bit of the settings is less
            # than one of the file, as with tables, the way down is walked faster.
            missing = 8 * (limit * (1 - SLACK / 2) - size) / self.weights
            bits += missing * 2 ** max(0, too_large - 1)
        if not best:
            raise ValueError(
                f"{self.most_bytes:,} bytes are too few: with {bits:.2f} bits a weight the file takes {size:,}"
            )
        return best, None

    def _size(self, settings: Compensation) -> tuple[int, CompressedModel | None]:
        key = json.dumps([settings.to_mapping(), self._tuning])
        if key in self._sizes:
            return self._sizes[key], None
        packed = self.compressed(settings)
        self._sizes[key] = self.size_of(packed)
        (self.place / SIZES).write_text(json.dumps(self._sizes))
        return self._sizes[key], packed
