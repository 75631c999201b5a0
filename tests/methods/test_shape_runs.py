"""Tensors of any shapes become one vector and come back from it."""

import pytest
import torch

from tersify.methods.shape_runs import ShapeRuns
from tersify.methods.strided_tensors import StridedTensors, is_channels_last

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


@pytest.mark.parametrize("of_gradient", [torch.contiguous_format, torch.channels_last])
def test_channels_last_tensors_come_back_in_their_layout(
    of_gradient: torch.memory_format,
) -> None:
    tensors = [
        torch.randn(4, 3, 5, 2).to(memory_format=torch.channels_last),
        torch.randn(7),
        torch.randn(2, 1, 3, 3),
        torch.randn(3, 4, 1, 1).to(memory_format=torch.channels_last),
    ]
    layout = StridedTensors(tensors)
    flat = layout.flatten(
        [t.contiguous(memory_format=of_gradient) if t.ndim == 4 else t for t in tensors]
    )
    # A vector may itself be a part of a larger one.
    for vector in (flat, torch.cat([flat.new_zeros(3), flat])[3:]):
        for piece, tensor in zip(layout.pieces(vector), tensors, strict=True):
            assert torch.equal(piece, tensor)
            assert piece.is_contiguous(
                memory_format=torch.channels_last
            ) or not is_channels_last(tensor)
