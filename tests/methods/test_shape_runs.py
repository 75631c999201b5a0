"""Tensors of any shapes become one vector and come back from it."""

import pytest
import torch

from tersify.methods.shape_runs import ShapeRuns

SHAPES = {
    "all alike": [(3, 4)] * 5,
    "other rows": [(3, 4), (3, 4), (7, 4)],
    "all different": [(2, 3, 3, 3), (5,), (4, 4), (4, 4), (1, 1)],
    "vectors": [(3,), (3,), (9,)],
    "a number": [(), (2, 2), ()],
    "an empty one": [(0, 4), (3, 4)],
    "one": [(3, 4)],
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_what_was_joined_comes_apart_as_it_was(shapes):
    tensors = [torch.randn(shape) for shape in shapes]
    runs = ShapeRuns(tensors)
    flat = runs.flatten(tensors)
    assert torch.equal(flat, torch.cat([t.reshape(-1) for t in tensors]))
    for piece, tensor in zip(runs.pieces(flat), tensors, strict=True):
        assert torch.equal(piece, tensor)
        assert piece.shape == tensor.shape


def test_a_layout_in_memory_does_not_change_the_order():
    tensors = [torch.randn(2, 3, 4, 4) for _ in range(3)]
    last = [t.contiguous(memory_format=torch.channels_last) for t in tensors]
    runs = ShapeRuns(tensors)
    assert torch.equal(runs.flatten(last), runs.flatten(tensors))
