"""One random module compiled and compared with torch; what disagrees is cut down to the steps it needs."""

from __future__ import annotations

import copy
import os
import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from against_torch import FP32_BOUND, MismatchError, compare, error_of, leaves
from fuzz_inputs import odd
from fuzz_modules import Case, smaller
from torch import Tensor, nn

from tersify.runtime import compile

# Numbers beyond the range of the example are clipped in int8: only what no clipping explains is wrong there.
LOOSE = {"fp32": FP32_BOUND, "fp16": 0.1, "int8": 2.0, "auto": 2.0}
SIZES = ((2, 0), (1, 0), (5, 1))  # batch, and what is added to the free sizes
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
        return cls(precision=precision, isa=rng.choice([None, *isas]), threads=rng.choice([1, 2, 3]))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """right, refused (with the sentence), or wrong: a mismatch or an exception that is no refusal."""

    kind: str
    why: str = ""
    refused_calls: int = 0
    calls: int = 0


def _slack(model: nn.Module, inputs: tuple[Tensor, ...], wanted: Any) -> float:
    """How wrong torch's own fp32 is, by the same module in doubles: sums that cancel are nobody's mistake."""
    wide = copy.deepcopy(model).double()
    given = tuple(x.detach().double() if x.is_floating_point() else x for x in copy.deepcopy(inputs))
    try:
        exact = wide(*given)
    except RuntimeError:
        return 0.0
    pairs = zip(leaves(wanted), leaves(exact), strict=True)
    errors = [error_of(a, b) for (_, a), (_, b) in pairs if isinstance(a, Tensor) and a.shape == b.shape]
    return 8 * max([0.0, *(e for e in errors if e != float("inf"))])


def _one_call(fast: Any, model: nn.Module, inputs: tuple[Tensor, ...], setting: Setting, odd_name: str) -> str:
    """ "right", "skipped" where torch itself raises, or "refused"; a mismatch raises."""
    twin = copy.deepcopy(model)
    theirs = copy.deepcopy(inputs)
    ours = copy.deepcopy(inputs)
    try:
        wanted = twin(*theirs)
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
        wanted = None  # the module does not take this; whatever we say, we do not crash
    try:
        given = fast(*ours)
    except ValueError:
        return "skipped" if wanted is None else "refused"
    except (RuntimeError, IndexError, TypeError, AssertionError):
        if wanted is None:
            return "skipped"
        raise
    if wanted is None:
        return "skipped"
    exact = setting.precision == "fp32"
    if not exact and odd_name.startswith(WORDS):
        return "right"  # 8 and 16 bits hold no such numbers
    bound = LOOSE[setting.precision]
    try:
        compare(given, wanted, bound)
        compare(ours, theirs, bound, "input after the call")
        compare(dict(model.named_buffers()), dict(twin.named_buffers()), bound, "buffer after the call")
    except MismatchError:
        slack = _slack(model, inputs, wanted)
        compare(given, wanted, bound, slack=slack)
        compare(ours, theirs, bound, "input after the call", slack)
        compare(dict(model.named_buffers()), dict(twin.named_buffers()), bound, "buffer after the call", slack)
    return "right"


def tried(case: Case, setting: Setting) -> Outcome:
    """Compiles the module and calls it with three sets of inputs at three sizes."""
    rng = random.Random(case.seed)
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
            batches = _calibration(case, setting)
            options = {"precision": setting.precision, "threads": setting.threads, "calibration": batches}
            fast = compile(model, example, **options)
            compare(example, shown, 0.0, "example after compile")
            compare(dict(model.state_dict()), dict(before), 0.0, "module after compile")
            for batch, shift in SIZES:
                for turn in range(3):
                    plain = case.inputs(batch, shift) if turn < 2 or rng.random() < 0.7 else case.inputs(0, shift)
                    names, inputs = zip(*(odd(rng, x) if turn else ("plain", x) for x in plain), strict=True)
                    odd_name = next((n for n in names if n.startswith(WORDS)), names[0])
                    where = f"batch {batch}, sizes +{shift}, inputs {names}"
                    counts[_one_call(fast, model, inputs, setting, odd_name)] += 1
    except ValueError as refusal:
        if where == "compile":
            return Outcome(kind="refused", why=str(refusal))
        return Outcome(kind="wrong", why=f"{where}: ValueError: {refusal}")
    except Exception as problem:  # a mismatch, or an exception that is no refusal: both are what we hunt
        return Outcome(kind="wrong", why=f"{where}: {type(problem).__name__}: {str(problem)[:300]}")
    calls = counts["right"] + counts["refused"]
    return Outcome(kind="right", calls=calls, refused_calls=counts["refused"])


def _calibration(case: Case, setting: Setting) -> list[tuple[Tensor, ...]] | None:
    if setting.precision not in ("int8", "auto"):
        return None
    return [case.inputs(*SIZES[0]) for _ in range(3)]


def cut_down(case: Case, setting: Setting, limit: int = 60) -> tuple[Case, Outcome]:
    """The smallest module found that is still wrong: steps are left out as long as it stays so."""
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
