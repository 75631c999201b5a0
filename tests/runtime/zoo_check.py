"""One network of the zoo compiled and compared with torch, for three batches and every
size it takes.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from against_torch import MismatchError, check
from torch import nn
from zoo_networks import BATCHES, EXAMPLE_BATCH, NETWORKS, made

from tersify.runtime import compile


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of it: right, refused (by compile, or by a call), or wrong; and the
    worst error of all calls.
    """

    kind: str
    why: str = ""
    error: float = 0.0
    kernels: int = 0
    torch_calls: int = 0
    sent_back: tuple[str, ...] = ()  # what the self-check gave back to torch


def compiled(model: nn.Module, example: Any) -> tuple[nn.Module, tuple[str, ...]]:
    """The compiled network and the warnings of its self-check."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fast = compile(model, example)
    # compile warns in the name of its caller; the networks' libraries warn in their own
    return fast, tuple(str(w.message) for w in caught if w.filename == __file__)


def operations(fast: Any) -> tuple[int, int]:
    """How many operations have kernels, and how many are calls of torch."""
    found = re.search(
        r"(\d+) operations with kernels, (\d+) torch calls", fast.plan.describe()
    )
    assert found, fast.plan.describe()
    return int(found[1]), int(found[2])


def trial(name: str, weights: str) -> Trial:
    """Every batch at every size; another type of exception than a refusal is for the
    caller to see.
    """
    entry = NETWORKS[name]
    model = made(name, weights)
    torch.manual_seed(1)
    try:
        fast, sent_back = compiled(model, entry.inputs(EXAMPLE_BATCH, entry.sizes[0]))
    except ValueError as refusal:
        return Trial(kind="refused", why=str(refusal))
    worst = 0.0
    kernels, torch_calls = operations(fast)
    refusals = []
    for size in entry.sizes:
        for batch in BATCHES:
            inputs = entry.inputs(batch, size)
            positional, named = (
                ((), inputs) if isinstance(inputs, dict) else (inputs, {})
            )
            try:
                worst = max(worst, check(fast, model, *positional, **named))
            except MismatchError as wrong:
                return Trial(
                    kind="wrong",
                    why=f"batch {batch}, size {size}: {wrong}",
                    kernels=kernels,
                )
            except ValueError as refusal:
                refusals.append(f"batch {batch}, size {size}: {refusal}")
    facts = {
        "error": worst,
        "kernels": kernels,
        "torch_calls": torch_calls,
        "sent_back": sent_back,
    }
    if refusals:
        return Trial(kind="size refused", why=refusals[0], **facts)
    return Trial(kind="right", **facts)
