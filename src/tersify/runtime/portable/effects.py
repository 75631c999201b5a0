"""What a plan cannot repeat, because it is more than numbers made of numbers: each
refusal names the call.
"""

from __future__ import annotations

from tersify.runtime.capture import Graph
from tersify.runtime.capture.randomness import is_random


def refuse_effects(graph: Graph) -> None:
    what = _random(graph) or _written(graph)
    if not what and graph.depends_on_strides:
        what = f"{graph.strides_read_by!r} looks at how its tensor lies in memory"
    if what:
        raise ValueError(f"{what}, so the network gets no plan")


def _random(graph: Graph) -> str:
    for call in graph.calls:
        own = getattr(call.target, "func", call.target)  # of a write in place
        if is_random(own, call.args, call.kwargs):
            return f"{call.results[0]!r} draws random numbers"
    return ""


def _written(graph: Graph) -> str:
    """Of what a call leaves in the module or in an input, by the value that it leaves."""
    names = {id(tensor): name for name, tensor in graph.parameters.items()}
    for name in (*graph.state, *graph.written):
        made = graph.written.get(name, name)
        tensor = graph.state.get(name)
        where = (
            "an input"
            if tensor is None
            else names.get(id(tensor), "a tensor of its own")
        )
        return f"{made!r} writes to {where}"
    return ""
