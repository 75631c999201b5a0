"""The module itself as a way to run a network that is not all kernels.

Torch has short cuts that no record of calls shows, and a small network may lose more
between kernels and torch calls than the kernels gain.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn

from tersify.modes import eval_mode
from tersify.runtime.bound_network import Bound
from tersify.runtime.capture import Captured
from tersify.runtime.check import FP32_TOLERANCE, difference
from tersify.runtime.nested import map_leaves, tensors

# A measurement takes this much CPU time, within these counts of rounds.
SECONDS = 0.1
LEAST_ROUNDS, MOST_ROUNDS = 5, 200
# Of the time of the plan: what is nearer than this is as fast.
WORTH = 0.98

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class Eager:
    """One module as torch runs it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @cached_property
    def twin(self) -> nn.Module | None:
        return twin(self._model)

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the module itself makes of a call, with all that it leaves behind."""
        with torch.no_grad(), eval_mode(self._model):
            return self._model(*args, **kwargs)

    def faster(
        self,
        bound: Bound,
        captured: Captured,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        call: Callable[..., Any],
    ) -> nn.Module | None:
        """The module to call, where the plan has torch calls and takes longer; `call`
        runs the plan the way a user does.
        """
        made = self.twin if bound.may_be_the_module else None
        if made is None:
            return None
        # The module must give what it gave in the capture before it may be timed.
        wanted = tensors(
            bound.like_the_module([captured.made[name] for name in bound.graph.results])
        )
        args, kwargs = map_leaves((args, dict(kwargs)), lambda leaf: leaf, {})
        with torch.no_grad():
            try:
                results = tensors(made(*args, **kwargs))
            except Exception:
                # anybody's forward, of a copy: what it raises is not known here
                return None
            apart = [difference(a, b) for a, b in zip(results, wanted, strict=False)]
            if len(results) != len(wanted) or max(apart, default=0.0) > FP32_TOLERANCE:
                return None
            recorded, module = _best_seconds(
                lambda: call(*args, **kwargs), lambda: made(*args, **kwargs)
            )
        return made if module < WORTH * recorded else None


def twin(model: nn.Module) -> nn.Module | None:
    """The module in eval mode with the same tensors; nobody else holds it, so that
    `model.train()` does not reach it.

    None where it cannot be copied, or where somebody's hooks would see every call.
    """
    # A copied hook would see calls of the copy, where its owner expects the original.
    if isinstance(model, fx.GraphModule) or any(
        getattr(m, name, None) for m in model.modules() for name in _HOOKS
    ):
        return None
    # deepcopy takes these as already copied, so the twin holds the same tensors.
    shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
    try:
        made = copy.deepcopy(model, dict(shared))
    except Exception:  # anybody's objects: what copying them raises is not known here
        return None
    same = zip(
        (*model.parameters(), *model.buffers()),
        (*made.parameters(), *made.buffers()),
        strict=True,
    )
    return made.eval() if all(a is b for a, b in same) else None


def _best_seconds(*works: Callable[[], Any]) -> list[float]:
    """Of each, in turns."""
    # On one thread CPU time leaves out what other programs do; on several it would
    # count what each of them does.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = [math.inf] * len(works)
    begin = time.process_time()
    # In turns, so that a slow phase of the machine hits both alike.
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and time.process_time() - begin > SECONDS:
            break
        for i, work in enumerate(works):
            start = clock()
            work()
            best[i] = min(best[i], clock() - start)
    return best
