import pytest
import torch

import tersify
from tersify.cli.bench import input_shape
from tersify.tensor import CompressedModel


@pytest.mark.parametrize("stored", [["x"], [None], "3,4", [0], [-1, 4], [True], [1 << 20, 1 << 20]])
def test_an_impossible_input_size_in_a_file_is_refused(stored, tmp_path):
    path = tmp_path / "net.terse"
    tersify.save(CompressedModel({"w": torch.zeros(2)}, metadata={"input": stored}), path)
    with pytest.raises(ValueError, match="--shape takes whole numbers"):
        input_shape(path, None)
    assert input_shape(path, "3,8,8") == (3, 8, 8)
