"""Inputs that share memory with what a forward writes to.

A plan reads all its inputs first and writes at its end; in the module itself a write is
seen by whatever shares its memory, at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from tersify.runtime.capture import Graph

Span = tuple[int, int]  # the first byte, and the one behind the last


def writes_are_seen(graph: Graph, inputs: Sequence[Tensor]) -> bool:
    """Whether a write of this graph would be seen by another of its tensors, or by the
    same one a second time.

    Spans are compared, not numbers: where two tensors lie between each other the module
    runs, too, which is slower and as right.
    """
    places = dict(zip(graph.inputs, inputs, strict=True))
    spans = {name: _span(x) for name, x in (*places.items(), *graph.state.items())}
    for written in graph.written:
        # The capture knows which of the module's own tensors share memory.
        others = spans if written in places else places
        if any(
            _meet(spans[written], spans[other]) for other in others if other != written
        ):
            return True
    return any(_overlaps_itself(x) for n, x in places.items() if n in graph.written)


def refuse_fixed_tensors(graph: Graph, inputs: Sequence[Tensor]) -> None:
    """An input that is written to must not be one of the module's tensors that the
    plans took as they were.
    """
    written = [
        _span(x)
        for name, x in zip(graph.inputs, inputs, strict=True)
        if name in graph.written
    ]
    if not written:
        return
    changing = {id(t) for t in graph.state.values()}
    for name, tensor in (*graph.parameters.items(), *graph.constants.items()):
        if id(tensor) not in changing and _any_meets(written, _span(tensor)):
            raise ValueError(
                f"the forward writes to an input that shares memory with {name!r}, which was packed when the network "
                "was compiled; give a copy of it (.clone())"
            )


def _any_meets(spans: Iterable[Span], other: Span) -> bool:
    return any(_meet(span, other) for span in spans)


def _span(x: Tensor) -> Span:
    if not x.numel():
        return 0, 0
    last = sum(
        (size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)
    )
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.itemsize


def _meet(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _overlaps_itself(x: Tensor) -> bool:
    """Whether one number may stand at several positions."""
    # From the smallest step: each must lead out of all that the smaller ones reach.
    reach = 0
    for step, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and step <= reach:
            return True
        reach += (size - 1) * step
    return False
