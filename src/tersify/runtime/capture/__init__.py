"""A module and its inputs → a graph of functional ATen operations, exact for the sizes
of these inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tersify.modes import eval_mode
from tersify.runtime.capture.attributes import Attributes
from tersify.runtime.capture.given import (
    Copy,
    Given,
    copied_in_order,
    copied_with_strides,
)
from tersify.runtime.capture.padded_encoders import refuse_nested_paddings
from tersify.runtime.capture.randomness import numbers_kept
from tersify.runtime.capture.recorder import Recorder
from tersify.runtime.capture.refusal import CannotCapture, refuse
from tersify.runtime.capture.sharing import sharing
from tersify.runtime.capture.values import Call, Graph, Ref, Value, refs, resolve
from tersify.runtime.nested import is_plain, map_leaves, tensors

__all__ = [
    "Call",
    "CannotCapture",
    "Captured",
    "Graph",
    "Ref",
    "Value",
    "capture",
    "refs",
    "resolve",
]

INPUT = "input"


@dataclass(frozen=True, kw_only=True)
class Captured:
    """The graph, and the numbers that the module itself made in the run that was
    recorded, by the names of values.
    """

    graph: Graph
    made: Mapping[str, Tensor]


def capture(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    keep_strides: bool = False,
    state: tuple[Tensor, ...] = (),
) -> Captured:
    """Run the module once in eval mode on copies of the inputs. The module is left as
    it was.

    The copies are contiguous, unless `keep_strides`: what a write in place reaches may
    depend on strides. `state`: tensors of the module that are known to change; those
    that this run changes are found.
    """
    copy = copied_with_strides if keep_strides else copied_in_order
    with numbers_kept():
        try:
            return _settled(model, args, kwargs, state, copy)
        except CannotCapture:
            # Some libraries look at numbers only to skip work, and not while
            # torch.compile looks at them.
            with _as_if_compiling():
                return _settled(model, args, kwargs, state, copy)


@contextlib.contextmanager
def _as_if_compiling() -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true inside, where this torch keeps it in a
    flag.
    """
    # A private name: a torch without it is left alone.
    before = getattr(torch.compiler, "_is_compiling_flag", None)
    if before is None:
        yield
        return
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _settled(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    state: tuple[Tensor, ...],
    copy: Copy,
) -> Captured:
    # A first record may show that the forward changes buffers, or fills a cache. It is
    # then recorded again with that known. Four rounds are enough for a buffer whose
    # change shows another one; a forward that goes on changing is refused.
    settled = False
    before = Attributes(model)
    for _ in range(4):
        try:
            recorder, captured, changed = _record(model, args, kwargs, state, copy)
        except Exception:
            before.restore()
            raise
        # they change from call to call: the next record reads them as inputs
        if recorder.mutated:
            state = (*state, *recorder.mutated.values())
        elif changed and not settled:  # some modules fill a cache in their first run
            settled = True
        elif changed:
            before.restore()
            raise CannotCapture(
                f"the forward of {type(model).__name__} sets {changed} at every call; register it as a buffer, or "
                "return it"
            )
        else:
            return captured
    raise CannotCapture(
        f"the forward of {type(model).__name__} changes other tensors at every call; it cannot be compiled"
    )


def _record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    state: tuple[Tensor, ...],
    copy: Copy,
) -> tuple[Recorder, Captured, str]:
    owned: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    owned |= dict(model.named_buffers(remove_duplicate=False))
    recorder = Recorder(owned)
    # needs a private name of torch, so not before it is used
    from tersify.runtime.capture.recording_modes import watch

    # The run may write to its inputs, and what the caller holds must not change.
    given = Given(model, args, kwargs, copy)
    copies = given.tensors
    inputs = tuple(INPUT if i == 0 else f"{INPUT}_{i}" for i in range(len(copies)))
    for name, tensor in zip(inputs, copies, strict=True):
        recorder.add_live(tensor, name)
    state_names = {f"state_{i}": tensor for i, tensor in enumerate(state)}
    for name, tensor in state_names.items():
        recorder.add_live(tensor, name)
    before = Attributes(model)
    slots = _slots(model)
    # Put back in `finally`, so that compiling does not advance the module's state.
    held = [(t, t.detach().clone()) for t in state]
    try:
        with (
            eval_mode(model),
            refuse_nested_paddings(model),
        ):
            outputs = watch(recorder, lambda: model(*given.args, **given.kwargs))
        given.refuse_changes()
        referred = map_leaves(outputs, lambda leaf: _output(recorder, leaf), {})
        live = dict(zip((*inputs, *state_names), (*copies, *state), strict=True))
        # An input or state whose current value has another name was written to.
        written = {
            name: now
            for name, tensor in live.items()
            if (now := recorder.current(tensor)) != name
        }
        returned = tensors(outputs)
        made = {
            recorder.current(t): t.detach().clone() for t in (*returned, *live.values())
        }
        shared = sharing(recorder, returned, live)
    finally:
        recorder.generators.restore()
        with torch.no_grad():
            for tensor, old in (*recorder.saved, *held):
                tensor.data.copy_(old)
        _refuse_other_tensors(slots)
    graph = Graph(
        inputs=inputs,
        calls=tuple(recorder.calls),
        outputs=referred,
        values=recorder.values,
        constants=recorder.constants,
        parameters=owned,
        state=state_names,
        written=written,
        random=recorder.random,
        depends_on_strides=recorder.depends_on_strides
        or not written.keys().isdisjoint(inputs),
        strides_read_by=recorder.strides_read_by,
        sharing=shared,
    )
    captured = Captured(graph=graph, made=made)
    return recorder, captured, before.changed(recorder)


def _output(recorder: Recorder, leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return Ref(recorder.current(leaf))
    if not is_plain(leaf):
        kind = type(leaf).__name__
        raise refuse(
            f"the model returns a {kind}",
            "compile needs results of tensors, numbers and their containers",
        )
    return leaf


def _slots(model: nn.Module) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The parameters and buffers of every module: its name, where they stand, and what
    stands there.
    """
    return [
        (name, slots, dict(slots))
        for name, module in model.named_modules()
        for slots in (module._parameters, module._buffers)
    ]


def _refuse_other_tensors(
    slots: list[tuple[str, dict[str, Any], dict[str, Any]]],
) -> None:
    """A forward may change the numbers of a buffer, but not put another tensor in its
    place. All stand there again.
    """
    replaced = ""
    for owner, now, before in slots:
        for key in {*now, *before}:
            # A tensor that was assigned anew would be a constant of this one run.
            if now.get(key) is not before.get(key):
                replaced = f"{owner}.{key}".lstrip(".")
        if replaced:
            now.clear()
            now.update(before)
    if replaced:
        raise CannotCapture(
            f"the forward puts another tensor in the place of {replaced!r}; change its numbers with copy_()"
        )
