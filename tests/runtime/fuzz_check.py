"""One random module compiled and compared with torch; what disagrees is cut down to the
steps it needs.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from against_torch import FP32_BOUND, MismatchError, compare, error_of, leaves
from fuzz_inputs import odd
from fuzz_modules import Case, Program, smaller
from torch import Tensor, nn

from tersify.runtime import compile

# Ranges of int8 come from the very numbers that are compared, so that nothing is
# clipped.
BOUNDS = {"fp32": FP32_BOUND, "fp16": 0.1, "int8": 0.5, "auto": 0.5}
SIZES = ((2, 0), (1, 0), (5, 1))  # batch, and what is added to the free sizes
# it says so politely, but the capture is wrong
NO_REFUSAL = "cannot be run a second time"
# Steps that jump: a number that int8 or fp16 rounds may fall on the other side. fp32
# has them all.
JUMPS = (
    "scatter(",
    "index_put of a mask",
    "argmax(",
    "one_hot",
    "bucketize",
    "nan_to_num",
    "int and back",
    "v.masked",
    "Threshold(",
    "Hardshrink(",
)
# What rounding may change the inputs of a layer by, of their largest: another call may
# have had twice the range. fp32 is asked only of steps that jump: equal tokens make equal
# numbers, and rounding decides which is the largest.
STEPS = {"fp32": 2**-22, "fp16": 1 / 1024, "int8": 1 / 64, "auto": 1 / 64}
SHAKES = 8
WORDS = ("NaN", "a nan", "a inf", "a -inf", "huge", "tiny")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a case is compiled."""

    precision: str
    isa: str | None
    threads: int

    @classmethod
    def drawn(cls, rng: random.Random, isas: list[str]) -> Setting:
        precision = rng.choice(["fp32", "fp32", "fp32", "int8", "auto", "fp16"])
        return cls(
            precision=precision,
            isa=rng.choice([None, *isas]),
            threads=rng.choice([1, 2, 3]),
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """right, refused (with the sentence), or wrong: a mismatch or an exception that is
    no refusal.
    """

    kind: str
    why: str = ""
    refused_calls: int = 0
    calls: int = 0


def _exact(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Any] | None:
    """What the same module gives in doubles; None where it takes none."""
    wide = copy.deepcopy(model).double()
    given = tuple(
        x.detach().double() if x.is_floating_point() else x
        for x in copy.deepcopy(inputs)
    )
    try:
        return [value for _, value in leaves(wide(*given))]
    except RuntimeError:
        return None


def _is_no_further(given: Any, wanted: Any, exact: list[Any]) -> bool:
    """Whether each part lies as near to the exact numbers as torch's: sums that cancel
    are nobody's mistake.
    """
    for (_, ours), (_, theirs), right in zip(
        leaves(given), leaves(wanted), exact, strict=True
    ):
        if isinstance(right, Tensor) and right.is_floating_point() and right.numel():
            errors = [(x.detach().double() - right).abs().max() for x in (ours, theirs)]
            if not errors[0] <= errors[1]:
                return False
    return True


def _slack(wanted: Any, exact: list[Any]) -> float:
    """How wrong torch's own fp32 is."""
    pairs = zip((value for _, value in leaves(wanted)), exact, strict=True)
    errors = [
        error_of(a, b) for a, b in pairs if isinstance(a, Tensor) and a.shape == b.shape
    ]
    return 8 * max([0.0, *(e for e in errors if e != float("inf"))])


def _largest(model: Program, calls: list[_Call]) -> dict[str, float]:
    """For each output its largest value over all calls: the step of an int8 output is a
    fraction of that.
    """
    found: dict[str, float] = {}
    for call in calls:
        if call.is_odd:
            continue
        try:
            outputs = list(leaves(copy.deepcopy(model)(*copy.deepcopy(call.inputs))))
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
            continue  # the module does not take this
        for path, value in outputs:
            if (
                isinstance(value, Tensor)
                and value.is_floating_point()
                and value.isfinite().any()
            ):
                found[path] = max(
                    found.get(path, 0.0), value[value.isfinite()].abs().max().item()
                )
    return found


def shaken(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    step: float,
    largest: dict[str, float],
) -> float:
    """How far the module's own outputs move when the inputs of its layers change by a
    step: a norm over two numbers jumps as well.
    """

    def changed(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel():
            return x
        return x + x.abs().max() * step * (2 * torch.rand(x.shape, dtype=x.dtype) - 1)

    wanted = dict(leaves(copy.deepcopy(model)(*copy.deepcopy(inputs))))
    moved = [0.0]
    with torch.random.fork_rng():
        for seed in range(SHAKES):
            torch.manual_seed(seed)
            twin = copy.deepcopy(model)
            for layer in twin.modules():
                if isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)):
                    layer.register_forward_pre_hook(
                        lambda _, args: tuple(changed(x) for x in args)
                    )
            made = leaves(twin(*(changed(x) for x in copy.deepcopy(inputs))))
            moved += [
                error_of(value, wanted[path], largest.get(path, 0.0))
                for path, value in made
                if isinstance(value, Tensor) and value.is_floating_point()
            ]
    return max(error for error in moved if error != float("inf"))


def _one_call(
    fast: Any, model: Program, call: _Call, setting: Setting, largest: dict[str, float]
) -> str:
    """ "right", "skipped" where torch itself raises, or "refused"; a mismatch raises."""
    with torch.inference_mode() if call.for_inference else nullcontext():
        return _compared(fast, model, call.inputs, setting, call.is_odd, largest)


def _compared(
    fast: Any,
    model: Program,
    inputs: tuple[Tensor, ...],
    setting: Setting,
    is_odd: bool,
    largest: dict[str, float],
) -> str:
    twin = copy.deepcopy(model)
    theirs = copy.deepcopy(inputs)
    ours = copy.deepcopy(inputs)
    try:
        wanted = twin(*theirs)
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
        wanted = None  # the module does not take this; whatever we say, we do not crash
    try:
        given = fast(*ours)
    except ValueError as refusal:
        if NO_REFUSAL in str(refusal):
            raise
        return "skipped" if wanted is None else "refused"
    except (RuntimeError, IndexError, TypeError, AssertionError):
        if wanted is None:
            return "skipped"
        raise
    if wanted is None:
        return "skipped"
    exact = setting.precision == "fp32"
    if not exact and is_odd:
        return "right"  # 8 and 16 bits hold no such numbers
    jumps = any(step.name.startswith(JUMPS) for step in model.steps)
    bound = float("inf") if jumps and not exact else BOUNDS[setting.precision]
    try:
        compare(given, wanted, bound, least=largest)
        compare(ours, theirs, bound, "input after the call")
        compare(
            dict(model.named_buffers()),
            dict(twin.named_buffers()),
            bound,
            "buffer after the call",
        )
    except MismatchError:
        # other parts, shapes or types are wrong whatever they hold
        compare(given, wanted, float("inf"))
        if jumps or not exact:
            step = STEPS[setting.precision]
            bound = max(bound, 2 * shaken(model, inputs, step, largest))
        right = _exact(model, inputs)
        slack = _slack(wanted, right) if right is not None else 0.0
        if right is None or not _is_no_further(given, wanted, right):
            compare(given, wanted, bound, slack=slack, least=largest)
        compare(ours, theirs, bound, "input after the call", slack)
        _compare_buffers(model, twin, wanted, bound, slack)
    return "right"


def _compare_buffers(
    model: nn.Module, twin: nn.Module, outputs: Any, bound: float, slack: float
) -> None:
    """Errors count beside the outputs as well: the mean of normed numbers is nothing
    but rounding, and a buffer may hold it.
    """
    ours, theirs = dict(model.named_buffers()), dict(twin.named_buffers())
    sizes = [
        value[value.isfinite()].abs().max().item()
        for _, value in leaves(outputs)
        if isinstance(value, Tensor)
        and value.is_floating_point()
        and value.isfinite().any()
    ]
    least = {path: max([0.0, *sizes]) for path, _ in leaves(theirs)}
    compare(ours, theirs, bound, "buffer after the call", slack, least)


def run_in_torch(case: Case) -> None:
    """The same calls without us: torch has kernels that end the process, too."""
    for call in _calls(case):
        with contextlib.suppress(
            RuntimeError, ValueError, IndexError, TypeError, AssertionError
        ):
            copy.deepcopy(case.program)(*copy.deepcopy(call.inputs))


def tried(case: Case, setting: Setting) -> Outcome:
    """Compiles the module and calls it with three sets of inputs at three sizes."""
    torch.manual_seed(case.seed + 1)
    model = case.program
    example = case.inputs(*SIZES[0])
    before = copy.deepcopy(model.state_dict())
    counts = {"right": 0, "skipped": 0, "refused": 0}
    if setting.isa is None:
        os.environ.pop("TERSIFY_ISA", None)
    else:
        os.environ["TERSIFY_ISA"] = setting.isa
    where = "compile"
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            shown = copy.deepcopy(example)
            calls = _calls(case)
            fast = _compiled(model, example, setting, calls)
            compare(example, shown, 0.0, "example after compile")
            compare(dict(model.state_dict()), dict(before), 0.0, "module after compile")
            largest = {} if setting.precision == "fp32" else _largest(model, calls)
            for call in calls:
                where = call.where
                counts[_one_call(fast, model, call, setting, largest)] += 1
    except ValueError as refusal:
        if where == "compile" and NO_REFUSAL not in str(refusal):
            return Outcome(kind="refused", why=str(refusal))
        return Outcome(kind="wrong", why=f"{where}: ValueError: {refusal}")
    except Exception as problem:
        # a mismatch, or an exception that is no refusal: both are what we hunt
        return Outcome(
            kind="wrong", why=f"{where}: {type(problem).__name__}: {str(problem)[:300]}"
        )
    calls = counts["right"] + counts["refused"]
    return Outcome(kind="right", calls=calls, refused_calls=counts["refused"])


@dataclass(frozen=True, kw_only=True)
class _Call:
    """The inputs of one call, and whether they hold numbers that 8 and 16 bits cannot."""

    where: str
    size: tuple[int, int]
    inputs: tuple[Tensor, ...]
    is_odd: bool
    for_inference: bool  # in torch's inference mode, with tensors that were made in it


def _calls(case: Case) -> list[_Call]:
    """Three calls at each of three sizes: the first with plain inputs."""
    rng = random.Random(case.seed)
    calls = []
    for batch, shift in SIZES:
        for turn in range(3):
            count = batch if turn < 2 or rng.random() < 0.7 else 0
            plain = case.inputs(count, shift)
            names, inputs = zip(
                *(odd(rng, x) if turn else ("plain", x) for x in plain), strict=True
            )
            calls.append(
                _Call(
                    where=f"batch {count}, sizes +{shift}, inputs {names}",
                    size=(count, shift),
                    inputs=inputs,
                    is_odd=any(name.startswith(WORDS) for name in names),
                    for_inference=rng.random() < 0.15,
                )
            )
    return calls


def _compiled(
    model: Program, example: tuple[Tensor, ...], setting: Setting, calls: list[_Call]
) -> Any:
    """Calibrated with all calls; without those of the sizes at which the module
    computes other things.
    """
    options = {"precision": setting.precision, "threads": setting.threads}
    if setting.precision not in ("int8", "auto"):
        return compile(model, example, **options)
    fit = [call for call in calls if call.size[0] and not call.is_odd]
    for sizes in (SIZES, SIZES[:2], SIZES[::2]):
        batches = [
            example,
            *(copy.deepcopy(call.inputs) for call in fit if call.size in sizes),
        ]
        try:
            return compile(model, example, calibration=batches, **options)
        except ValueError as refusal:
            if "calibration batch" not in str(refusal):
                raise
    batches = [
        example,
        *(copy.deepcopy(call.inputs) for call in fit if call.size == SIZES[0]),
    ]
    return compile(model, example, calibration=batches, **options)


def cut_down(case: Case, setting: Setting, limit: int = 60) -> tuple[Case, Outcome]:
    """The smallest module found that is still wrong: steps are left out as long as it
    stays so.
    """
    best, outcome = case, tried(case, setting)
    tries = 0
    again = True
    while again and tries < limit:
        again = False
        for other in smaller(best):
            tries += 1
            now = tried(other, setting)
            if now.kind == "wrong":
                best, outcome, again = other, now, True
                break
            if tries >= limit:
                break
    return best, outcome
