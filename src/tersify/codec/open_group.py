"""A group of codes or of arrays in the making: the tensors behind it, and what its codes
mean.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tersify.codec.codes import Meaning
from tersify.codec.layout import Box
from tersify.codec.native import Codes
from tersify.codec.split import encode_group

Floats = npt.NDArray[np.float64]


@dataclass
class OpenGroup:
    """A group in the making."""

    elements: int = 0
    # of the tensors behind the boxes, and where each begins there
    names: list[str] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    codes: list[Codes] = field(default_factory=list)
    codebooks: list[Tensor | None] = field(default_factory=list)
    arrays: list[tuple[str, Codes]] = field(default_factory=list)
    coded: tuple[str, bytes] | None = None  # what it became, where that was tried

    @property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        """Which blocks of which tensors it holds."""
        return tuple(zip(self.names, self.begins, strict=True))

    def apart(self, part_of: Mapping[str, Hashable]) -> list[OpenGroup]:
        """The codes of the tensors of each part as a group of their own."""
        made: dict[Hashable, OpenGroup] = {}
        for name, begin, box, codes, codebook in zip(
            self.names, self.begins, self.boxes, self.codes, self.codebooks, strict=True
        ):
            own = made.setdefault(part_of[name], OpenGroup())
            own.add_codes(name, begin, box, codes, codebook)
        return list(made.values())

    def add_codes(
        self, name: str, begin: int, box: Box, codes: Codes, codebook: Tensor | None
    ) -> None:
        self.elements += box.elements
        self.names.append(name)
        self.begins.append(begin)
        self.boxes.append(box)
        self.codes.append(codes)
        self.codebooks.append(codebook)

    def meaning(self, levels: int) -> Meaning:
        codebooks = [_mean_levels(codebook, levels) for codebook in self.codebooks]
        return Meaning(
            activity=np.stack(list(map(_activity, codebooks))),
            order=np.argsort(_mean(np.stack(codebooks)), kind="stable").astype(
                np.uint8
            ),
        )


def encode_open(levels: int, group: OpenGroup) -> tuple[str, bytes]:
    """The codes of a group in the smallest coding, made once."""
    if group.coded is None:
        group.coded = encode_group(
            np.concatenate(group.codes), group.boxes, levels, group.meaning(levels)
        )
    return group.coded


def _mean_levels(codebook: Tensor | None, levels: int) -> Floats:
    """The level behind each code, over all rows of a codebook; a mask has the levels 0
    and 1.
    """
    if codebook is None:
        return np.array([0.0, 1.0])
    flat = codebook.detach().cpu().double().reshape(-1, levels).numpy()
    # Levels only guide the coder; NaN or infinity among them must not stop it.
    finite = np.nan_to_num(flat, posinf=0.0, neginf=0.0)
    return _mean(finite) if len(flat) else np.zeros(levels)


def _activity(levels: Floats) -> Codes:
    sizes = np.abs(np.ldexp(levels, -_exponent(levels)))
    return (
        np.round(sizes * (255.0 / sizes.max())).astype(np.uint8)
        if sizes.max() > 0
        else sizes.astype(np.uint8)
    )


def _mean(rows: Floats) -> Floats:
    # Sums of huge numbers overflow, and times a power of two numbers are the same.
    exponent = _exponent(rows)
    return np.ldexp(np.ldexp(rows, -exponent).mean(0), exponent)


def _exponent(values: Floats) -> int:
    """Of the power of two above the largest value."""
    return int(np.frexp(np.abs(values).max())[1])
