"""Files that carry a graph know what goes into it."""

import pytest
import torch
from torch import nn

import tersify
from tersify.lab.random_inputs import network_and_input


def saved(path, network, example):
    tersify.save(
        tersify.compress_(network.eval(), "bitnet"),
        path,
        network=network,
        example=example,
    )
    return path


def test_a_graph_tells_the_size_of_its_input(tmp_path):
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 3 * 5, 6)
    )
    file = saved(tmp_path / "a.terse", network, torch.randn(2, 2, 5, 7))
    loaded, inputs = network_and_input(file, batch=3)
    assert inputs.shape == (3, 2, 5, 7)
    assert torch.allclose(loaded(inputs), network(inputs), atol=1e-5)
    _, asked = network_and_input(file, batch=1, shape="2,5,7")
    assert asked.shape == (1, 2, 5, 7)


@pytest.mark.parametrize("shape", [None, "5"])
def test_a_graph_that_looks_words_up_gets_words_that_it_knows(shape, tmp_path):
    network = nn.Sequential(nn.Embedding(7, 8), nn.Flatten(), nn.Linear(40, 3))
    file = saved(tmp_path / "a.terse", network, torch.zeros(2, 5, dtype=torch.long))
    loaded, inputs = network_and_input(file, batch=50, shape=shape)
    assert (inputs.shape, inputs.dtype) == ((50, 5), torch.int64)
    assert (int(inputs.min()), int(inputs.max())) == (1, 6)
    assert torch.allclose(loaded(inputs), network(inputs), atol=1e-5)


def test_the_graphs_word_does_not_count_for_another_network(tmp_path):
    file = saved(
        tmp_path / "a.terse", nn.Sequential(nn.Linear(6, 3)), torch.randn(2, 6)
    )
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Linear(6, 3))\n"
    )
    with pytest.raises(
        ValueError, match="what goes into the network is not known; give --shape"
    ):
        network_and_input(file, target=f"{tmp_path / 'mine.py'}:net", batch=1)
