"""Layers for gpu_linear.py: ours in every packed form, and those of others, as
functions that one graph can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.gpu import driver, rounding, sparse, table4, ternary
from tersify.runtime.gpu.launch import Launch, Tiling, padded_features
from tersify.runtime.gpu.timing import copies_of

Work = Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    rows: int
    features: int
    vectors: int
    zeros: float = 1 / 3
    dtype: torch.dtype = torch.float16

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.features}"

    def signs(self) -> Tensor:
        g = torch.Generator("cuda").manual_seed(self.rows + self.features)
        sign = (
            torch.randint(
                0,
                2,
                (self.rows, self.features),
                generator=g,
                device="cuda",
                dtype=torch.int8,
            )
            * 2
            - 1
        )
        kept = (
            torch.rand(self.rows, self.features, generator=g, device="cuda")
            >= self.zeros
        )
        return sign * kept

    def codes(self) -> Tensor:
        g = torch.Generator("cuda").manual_seed(self.rows + self.features)
        return torch.randint(
            0,
            16,
            (self.rows, self.features),
            generator=g,
            device="cuda",
            dtype=torch.uint8,
        )

    def levels(self) -> Tensor:
        return torch.randn(16, generator=torch.Generator().manual_seed(1)).to(
            "cuda", self.dtype
        )

    def scale(self) -> Tensor:
        return torch.linspace(0.5, 1.5, self.rows, device="cuda")

    def x(self) -> Tensor:
        g = torch.Generator("cuda").manual_seed(7)
        return torch.randn(self.vectors, self.features, generator=g, device="cuda").to(
            self.dtype
        )

    def out(self) -> Tensor:
        return torch.full(
            (self.vectors, self.rows), float("nan"), device="cuda", dtype=self.dtype
        )


def run(launches: list[Launch], out: Tensor) -> Work:
    def work() -> Tensor:
        for launch in launches:
            driver.run(launch, out.device)
        return out

    return work


def ternary_works(
    case: Case, mode: str, tiling: Tiling, packed: list[Tensor]
) -> list[list[Launch]]:
    """`mode`: 16-bit activations, int8 ones that are given, or int8 ones that are made
    on the way.
    """
    x, scale = (
        padded_features(case.x(), packed[0].shape[1] * ternary.FEATURES),
        case.scale(),
    )
    made = rounding.empty(case.vectors, x.shape[1], x.device)
    rounding_launch = rounding.launch(x, made, swapped=True)
    driver.run(rounding_launch, x.device)
    works = []
    for words in packed:
        out = case.out()
        if mode == "int8 inside":
            works.append(
                [ternary.launch(words, x, scale, None, out, tiling, round_here=True)]
            )
        else:
            given = made if mode.startswith("int8") else x
            first = [rounding_launch] if mode == "int8 rounded" else []
            works.append(
                [*first, ternary.launch(words, given, scale, None, out, tiling)]
            )
    return works


def table_works(
    case: Case, mode: str, tiling: Tiling, packed: list[Tensor]
) -> list[list[Launch]]:
    x, scale = (
        padded_features(case.x(), packed[0].shape[1] * table4.FEATURES),
        case.scale(),
    )
    made = rounding.empty(case.vectors, x.shape[1], x.device)
    driver.run(rounding.launch(x, made, swapped=False), x.device)
    levels = case.levels()
    step = float(levels.float().abs().max()) / 127
    table = (
        (levels.float() / step).round().to(torch.int8)
        if mode.startswith("int8")
        else table4.pairs(levels)
    )
    if mode.startswith("int8"):
        scale = scale * step
    works = []
    for words in packed:
        given = made if mode == "int8" else x
        works.append(
            [
                table4.launch(
                    words,
                    table,
                    given,
                    scale,
                    None,
                    case.out(),
                    tiling,
                    round_here=mode == "int8 inside",
                )
            ]
        )
    return works


def sparse_works(
    case: Case, mode: str, warps: int, in_flight: int, packed: list[sparse.Lists]
) -> list[list[Launch]]:
    x, scale = padded_features(case.x(), packed[0].padded), case.scale()
    return [
        [
            sparse.launch(
                lists,
                x,
                scale,
                None,
                case.out(),
                warps=warps,
                in_flight=in_flight,
                rounded=mode == "int8 inside",
            )
        ]
        for lists in packed
    ]


def clones(first: Tensor) -> list[Tensor]:
    return [first, *(first.clone() for _ in range(copies_of(first.nbytes) - 1))]


def clones_of_lists(first: sparse.Lists) -> list[sparse.Lists]:
    count = copies_of(first.data.nbytes) - 1
    return [
        first,
        *(
            replace(first, data=first.data.clone(), starts=first.starts.clone())
            for _ in range(count)
        ),
    ]


def expected(
    case: Case, weight: Tensor, *, rounded: bool, step: float | None = None
) -> Tensor:
    """In float64. `rounded`: of the whole numbers that the CPU would make of the
    vectors.
    """
    x = case.x()
    if not rounded:
        return (x.double() @ weight.double().T) * case.scale().double()
    made = rounding.reference(x, swapped=False)
    factors = (
        weight.double() if step is None else (weight.double() / step).round() * step
    )
    return (
        (made.steps.double() @ factors.T)
        * made.scale.double()[:, None]
        * case.scale().double()
    )


def error(made: Tensor, wanted: Tensor) -> float:
    """Of the largest number."""
    return float((made.double() - wanted).abs().max() / wanted.abs().max())


def bf16_works(case: Case) -> list[Work]:
    weight = (case.signs() * case.scale()[:, None]).to(torch.bfloat16)
    x = case.x().to(torch.bfloat16)
    return [lambda w=w: F.linear(x, w) for w in clones(weight)]


def tinygemm_works(case: Case) -> list[Work]:
    """torch's int4 product, groups of 128."""
    codes = case.codes()
    packed = torch.ops.aten._convert_weight_to_int4pack(
        (codes[:, 1::2] | codes[:, ::2] << 4).contiguous(), 8
    )
    groups = torch.ones(
        case.features // 128, case.rows, 2, dtype=torch.bfloat16, device="cuda"
    )
    x = case.x().to(torch.bfloat16)
    return [
        lambda w=w: torch.ops.aten._weight_int4pack_mm(x, w, 128, groups)
        for w in clones(packed)
    ]
