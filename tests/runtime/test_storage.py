"""Memory as versions: a view read after a write has the memory's numbers, and one read
before keeps its own.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tersify.runtime.capture.shared_memory import (
    Geometry,
    Storage,
    read_view,
    write_view,
)


class Graph:
    """Computes at once what a capture would record."""

    def __init__(self, **values):
        self.values, self.calls = dict(values), []

    def emit(self, target, inputs, more, shape, dtype):
        made = target(*(self.values[name] for name in inputs), *more)
        assert tuple(made.shape) == shape
        assert made.dtype == dtype
        self.calls.append(target)
        self.values[name := f"v{len(self.values)}"] = made
        return name


def views(base):
    return {
        "rows": base[1:3],
        "column": base[:, 2],
        "steps": base[::2, 1:],
        "transposed": base.t(),
        "flat": base.view(-1),
        "diagonal": base.diagonal(),
        "blocks": base.view(2, 2, 6),
        "whole": base[:],
    }


VIEWS = list(views(torch.zeros(4, 6)))


@given(
    writes=st.lists(st.sampled_from(VIEWS), min_size=1, max_size=5),
    read=st.sampled_from(VIEWS),
)
@settings(max_examples=200, deadline=None)
def test_any_writes_through_views_reach_any_view(writes, read):
    memory = torch.arange(24.0).reshape(4, 6)
    graph = Graph(x=memory.clone())
    storage = Storage(Geometry.of(memory), "x", live=True)
    for i, name in enumerate(writes):
        view = views(memory)[name]
        written = torch.full(view.shape, -float(i)) + torch.arange(
            view.numel()
        ).reshape(view.shape)
        view.copy_(written)
        graph.values[f"w{i}"] = written
        storage.write(Geometry.of(view), f"w{i}")
        if i % 2:  # a read in between must not change what follows
            storage.read(Geometry.of(views(memory)["column"]), graph.emit)
    view = views(memory)[read]
    assert torch.equal(graph.values[storage.read(Geometry.of(view), graph.emit)], view)
    assert storage.version == len(writes)


def test_who_reads_what_was_written_last_needs_no_operation():
    memory = torch.zeros(4, 6)
    graph = Graph(x=memory, w=torch.ones(4))
    storage = Storage(Geometry.of(memory), "x", live=True)
    storage.write(Geometry.of(memory[:, 2]), "w")
    assert storage.read(Geometry.of(memory[:, 2]), graph.emit) == "w"
    assert graph.calls == []


def test_the_same_run_of_memory_under_another_shape_is_a_reshape():
    memory = torch.zeros(4, 6)
    graph = Graph(x=memory)
    storage = Storage(Geometry.of(memory), "x", live=True)
    storage.read(Geometry.of(memory.view(3, 8)), graph.emit)
    assert graph.calls == [torch.ops.aten.reshape.default]


def test_memory_that_is_read_or_written_as_another_type_is_refused():
    memory = torch.zeros(4, 6)
    storage = Storage(Geometry.of(memory), "x", live=True)
    other = Geometry.of(memory.view(torch.int32)[1:3, :2])
    with pytest.raises(ValueError, match="writes memory that is read as another type"):
        storage.write(other, "w")
    with pytest.raises(
        ValueError, match="reads memory that was written as another type"
    ):
        storage.read(other, Graph(x=memory).emit)


def test_a_base_that_does_not_begin_at_the_start_of_its_memory():
    memory = torch.arange(24.0)
    base, view = memory[4:20].view(4, 4), memory[9:15]
    value = torch.full((6,), -1.0)
    memory_geometry, view_geometry = ((4, 4), (4, 1), 4), ((6,), (1,), 9)
    assert torch.equal(read_view(base, memory_geometry, view_geometry), view)
    written = write_view(base, value, memory_geometry, view_geometry)
    view.copy_(value)
    assert torch.equal(written, base)


def test_a_constant_becomes_live_with_the_numbers_it_has():
    memory = torch.zeros(6)
    graph = Graph(c=torch.arange(6.0), w=torch.full((2,), 9.0))
    storage = Storage(Geometry.of(memory), None, live=False)
    storage.become_live(Geometry.of(memory), "c")
    storage.write(Geometry.of(memory[1:3]), "w")
    assert storage.live
    assert graph.values[storage.read(Geometry.of(memory), graph.emit)].tolist() == [
        0,
        9,
        9,
        3,
        4,
        5,
    ]
