"""A random module from a seed, with its inputs for several sizes; it is a list of
steps, so that it can be cut down.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import fuzz_idioms as fuzz_idioms  # registers its kinds, as does the next
import fuzz_views as fuzz_views
import torch
from fuzz_steps import KINDS, Step
from torch import Tensor, nn

MAX_NUMBERS = 6000  # in one value
MAX_MAGNITUDE = 1e3
WEIGHTS: dict[str, int] = {
    "conv": 5,
    "linear": 4,
    "activation": 3,
    "norm": 2,
    "written": 2,
    "fold": 2,
    "combined": 3,
}


STRUCTURES = ("tuple", "dict", "nested", "dataclass", "named tuple")


@dataclass
class Outputs:
    """What a forward returns that names its results."""

    first: Tensor
    others: list[Tensor]


class Named(NamedTuple):
    first: Tensor
    others: tuple[Tensor, ...]


class Program(nn.Module):
    """Runs its steps in order and returns the values it was told to, in a structure."""

    def __init__(
        self,
        steps: Sequence[Step],
        gives: Sequence[int],
        structure: str,
        tokens: nn.Module | None,
    ) -> None:
        super().__init__()
        self.steps = tuple(steps)
        self.gives = tuple(gives)
        self.structure = structure
        self.tokens = tokens
        self.layers = nn.ModuleList(
            [step.layer for step in steps if step.layer is not None]
        )

    def forward(self, *inputs: Tensor) -> Any:
        # of a copied module these are copies, those of its steps are not
        layers = iter(self.layers)
        values = (
            [self.tokens(inputs[0]), *inputs[1:]]
            if self.tokens is not None
            else list(inputs)
        )
        for step in self.steps:
            layer = None if step.layer is None else next(layers)
            values.append(step.run(layer, *(values[place] for place in step.reads)))
        given = [values[place] for place in self.gives]
        if self.structure == "tensor":
            return given[0]
        if self.structure == "dict":
            return {f"value_{place}": value for place, value in enumerate(given)}
        if self.structure == "dataclass":
            return Outputs(given[0], given[1:])
        if self.structure == "named tuple":
            return Named(given[0], tuple(given[1:]))
        return (
            (given[0], [*given[1:], None])
            if self.structure == "nested"
            else tuple(given)
        )

    def text(self) -> str:
        lines = [
            f"v{self.input_count + n} = {step.name}  reads {step.reads}"
            for n, step in enumerate(self.steps)
        ]
        first = [f"v0 = {self.tokens!r}"] if self.tokens is not None else []
        return "\n".join([*first, *lines, f"returns {self.structure} of {self.gives}"])

    input_count = 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """A module and how to draw its inputs: for a batch, and with the free sizes shifted
    by some amount.
    """

    seed: int
    program: Program
    inputs: Callable[[int, int], tuple[Tensor, ...]]
    weights: str

    def with_program(self, program: Program) -> Case:
        program.input_count = self.program.input_count
        return replace(self, program=program.eval())


def _sizes(rng: random.Random) -> Callable[[int, int], tuple[int, ...]]:
    """The shape of an input for a batch and a shift of its free sizes."""
    channels = rng.choice([1, 2, 3, 4, 6, 8, 12])
    h, w = rng.choice([1, 3, 5, 7, 8]), rng.choice([1, 2, 5, 6, 9])
    length = rng.choice([1, 4, 7, 11, 16])
    return rng.choice(
        [
            lambda b, s: (b, channels, h + s, w + 2 * s),
            lambda b, s: (b, channels, length + s),
            lambda b, s: (b, length + s, channels),
            lambda b, s: (b, channels),
            lambda b, s: (channels, h + s, w + b),
            lambda b, s: (channels, length + b + s),
            lambda b, s: (channels + 2 * b,),
            lambda b, s: (b, 3, channels, h + s, 2),
        ]
    )


def thin_(rng: random.Random, model: nn.Module, how: str) -> None:
    """Weights as people compile them."""
    for parameter in model.parameters():
        data = parameter.data
        if data.ndim < 2:
            continue
        kept = torch.rand_like(data) < rng.choice([0.05, 0.1, 0.3, 0.5])
        rows = data.abs().flatten(1).mean(1).view(-1, *[1] * (data.ndim - 1))
        if how == "pruned":
            data.mul_(kept)
        elif how == "ternary":
            data.copy_(data.sign() * kept * data.abs().mean())
        elif how == "ternary asymmetric":
            data.copy_(torch.where(data > 0, 0.7, -0.3) * kept)
        elif how == "ternary per channel":
            data.copy_(data.sign() * kept * rows)
        elif how == "binary":
            data.copy_(torch.where(data >= 0, 0.25, -0.25))
        elif how == "table":
            levels = torch.randn(rng.choice([2, 4, 13, 16, 40])) * 0.3
            levels[0] = 0
            data.copy_(levels[torch.randint(len(levels), data.shape)])
        elif how == "zero":
            data.zero_()
        elif how == "zero rows":
            data.mul_(torch.rand(len(data), *[1] * (data.ndim - 1)) < 0.5)


THINNINGS = (
    "dense",
    "pruned",
    "ternary",
    "ternary asymmetric",
    "ternary per channel",
    "binary",
    "table",
    "zero rows",
)


NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.LayerNorm,
    nn.GroupNorm,
)


def _used(model: nn.Module) -> None:
    """Norms that have seen data."""
    for module in model.modules():
        if getattr(module, "running_mean", None) is not None:
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, NORMS) and module.weight is not None:
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.3)


def runs(program: Program, inputs: tuple[Tensor, ...]) -> list[Tensor] | None:
    """All values of the program, where torch runs it, and they are numbers that can be
    compared.
    """
    kept: list[Tensor] = []
    wide = Program(
        program.steps, range(len(inputs) + len(program.steps)), "tuple", program.tokens
    ).eval()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # torch warns of writes into expanded values, and of windows of even sizes
            warnings.simplefilter("ignore")
            kept = list(wide(*inputs))
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
        return None
    for value in kept:
        wrong = (
            not isinstance(value, Tensor)
            or not 0 < value.numel() <= MAX_NUMBERS
            or value.ndim > 5
        )
        if wrong or not value.isfinite().all() or value.abs().max() > MAX_MAGNITUDE:
            return None
    return kept


def build(seed: int, most: int = 9) -> Case:  # noqa: C901 - one recipe, drawn from top to bottom
    """The module of a seed: steps are drawn one by one, and those that torch does not
    run are drawn again.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    tokens = None
    shapes = [_sizes(rng)]
    if rng.random() < 0.15:
        length = rng.choice([1, 5, 8])
        shapes = [lambda b, s: (b, length + s)]
        tokens = nn.Embedding(
            11, rng.choice([4, 6, 8]), padding_idx=rng.choice([None, 0])
        )
    elif rng.random() < 0.3:
        shapes.append(rng.choice([shapes[0], shapes[0], _sizes(rng)]))

    def inputs(batch: int, shift: int) -> tuple[Tensor, ...]:
        if tokens is not None:
            return (torch.randint(0, 11, shapes[0](batch, shift)),)
        return tuple(torch.randn(shape(batch, shift)) for shape in shapes)

    def program(
        steps: Sequence[Step], gives: Sequence[int] = (0,), structure: str = "tensor"
    ) -> Program:
        made = Program(steps, gives, structure, tokens)
        made.input_count = len(shapes)
        return made.eval()

    shown, other = inputs(2, 0), inputs(5, 1)
    portable = rng.random() < 0.7  # the others may have sizes of the example built in
    steps: list[Step] = []
    values = runs(program(steps), tuple(x.clone() for x in shown))
    names = [name for name in KINDS for _ in range(WEIGHTS.get(name, 1))]
    wanted = rng.randint(1, most)
    for _ in range(8 * most):
        if values is None or len(steps) >= wanted:
            break
        place = len(values) - 1 if rng.random() < 0.75 else rng.randrange(len(values))
        drawn = None
        try:
            drawn = KINDS[rng.choice(names)](rng, values[place])
        except (ValueError, RuntimeError, IndexError, ZeroDivisionError):
            continue  # a layer that torch does not make
        if drawn is None:
            continue
        reads = (place, *(rng.randrange(len(values)) for _ in range(drawn.seconds)))
        step = Step(name=drawn.name, reads=reads, run=drawn.run, layer=drawn.layer)
        longer = program([*steps, step])
        more = runs(longer, tuple(x.clone() for x in shown))
        if more is not None and not (
            portable and runs(longer, tuple(x.clone() for x in other)) is None
        ):
            steps, values = [*steps, step], more
    last = len(shapes) + len(steps) - 1
    gives = [
        last,
        *(rng.randrange(last + 1) for _ in range(rng.choice([0, 0, 0, 1, 2]))),
    ]
    structure = rng.choice([*STRUCTURES, *(["tensor"] * 6 * (len(gives) == 1))])
    made = program(steps, gives, structure)
    thinning = rng.choice(
        [*THINNINGS, "dense", "ternary", *(["zero"] if rng.random() < 0.3 else [])]
    )
    with torch.no_grad():
        _used(made)
        thin_(rng, made, thinning)
    if rng.random() < 0.08 and tokens is None:
        dtype = rng.choice([torch.float64, torch.float16, torch.bfloat16])
        if runs(made.to(dtype), _as(dtype, shown)) is not None:
            return Case(
                seed=seed,
                program=made,
                inputs=lambda b, s: _as(dtype, inputs(b, s)),
                weights=thinning,
            )
        made.float()
    return Case(seed=seed, program=made, inputs=inputs, weights=thinning)


def _as(dtype: torch.dtype, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.to(dtype) for x in inputs)


def smaller(case: Case) -> list[Case]:
    """The same case with one step left out, each in turn, the last first; and with one
    output.
    """
    program, count = case.program, case.program.input_count
    cases = []
    for out in reversed(range(len(program.steps))):
        place, stands_for = count + out, program.steps[out].reads[0]

        def moved(old: int, place: int = place, stands_for: int = stands_for) -> int:
            return stands_for if old == place else old - (old > place)

        left = [
            replace(step, reads=tuple(moved(r) for r in step.reads))
            for n, step in enumerate(program.steps)
            if n != out
        ]
        gives = [moved(place) for place in program.gives]
        cases.append(
            case.with_program(Program(left, gives, program.structure, program.tokens))
        )
    if len(program.gives) > 1 or program.structure != "tensor":
        for place in program.gives:
            cases.append(
                case.with_program(
                    Program(program.steps, [place], "tensor", program.tokens)
                )
            )
    return cases
