"""Broken and malicious graphs: refused when the file is loaded, and nothing runs, nor
is much memory taken.
"""

import copy
import json
import resource

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tersify
from tersify import TerseFileError
from tersify.graph import recorded
from tersify.graph.operations import operation
from tersify.tensor import CompressedModel


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Flatten(1), nn.Linear(4, 2))


GRAPH = recorded(network(), torch.ones(2, 4))


def file(graph, folder):
    tersify.save(
        CompressedModel(network().state_dict(), metadata={"graph": graph}),
        folder / "net.terse",
    )
    return folder / "net.terse"


def changed(**parts):
    return copy.deepcopy(GRAPH) | parts


def with_node(name, args, kwargs=None):
    graph = copy.deepcopy(GRAPH)
    graph["nodes"].append(["extra", name, args, kwargs or {}])
    graph["output"] = {"value": "extra"}
    return graph


def test_the_graph_itself_is_good(tmp_path):
    assert torch.equal(
        tersify.load(file(GRAPH, tmp_path))(torch.ones(3, 4)),
        network()(torch.ones(3, 4)),
    )


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file.default",
        "aten.relu_.default",
        "aten.add.out",
        "aten.set_.source_Tensor",
        "aten.__class__.x",
        "aten.__getattr__.default",
        "prims.add.default",
        "aten..",
        "os.system",
        "builtins.eval",
        "size.pow",
        "size.__import__",
        "aten.as_strided.default",
        "aten.resize_.default",
        "aten._foobar.default",
        "aten.relu",
        "",
    ],
)
def test_an_operation_outside_the_list_is_refused(name, tmp_path):
    assert operation(name) is None
    with pytest.raises(TerseFileError, match="which it may not"):
        tersify.load(file(with_node(name, [{"value": "linear"}]), tmp_path))


@pytest.mark.parametrize(
    "graph",
    [
        [],
        "x",
        {},
        {"inputs": 3},
        changed(inputs=[["x"]]),
        changed(inputs=[["x", [None, 1 << 60], "float32"]]),
        changed(inputs=[["x", [None, -4], "float32"]]),
        changed(inputs=[["x", [None, 4], "object"]]),
        changed(inputs=[[1, [None, 4], "float32"]]),
        changed(nodes=[["a", "aten.relu.default"]]),
        changed(nodes=[["a", "aten.relu.default", {}, []]]),
        changed(nodes=[["a", "aten.relu.default", [{"value": "b"}], {}]]),
        changed(nodes=[["a", "aten.relu.default", [{"value": "a"}], {}]]),
        changed(output={"value": "nothing"}),
        changed(output=3),
        changed(output={"names": 3}),
        changed(state=[]),
        changed(state=[["0.weight", "float32", True]]),
        changed(constants={"c": {"dtype": "float32", "shape": [1 << 40], "data": ""}}),
        changed(constants={"c": {"dtype": "float32", "shape": [2], "data": "!!"}}),
        changed(constants={"c": {"dtype": "bool", "shape": [1], "data": "BQ=="}}),
        changed(constants=[1]),
        with_node("aten.relu.default", [{"value": "linear", "more": 1}]),
        with_node("aten.relu.default", [{"float": "x"}]),
        with_node("aten.relu.default", []),
        with_node("aten.relu.default", ["text"]),
        with_node("aten.to.dtype", [{"value": "linear"}, {"dtype": "eval"}]),
        with_node("size.mul", [{"value": "linear"}, 3]),
        with_node("size.floordiv", [1, 0]),
        with_node("size.getitem", [{"value": "linear"}, {"value": []}]),
    ],
)
def test_a_graph_that_is_not_as_it_should_be_is_refused(graph, tmp_path):
    with pytest.raises(TerseFileError):
        tersify.load(file(graph, tmp_path))


def test_a_graph_takes_no_memory_that_it_does_not_say(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, args in {
        "aten.full.default": [[1 << 20, 1 << 20], 1.0],
        "aten.zeros.default": [[1 << 36]],
        "aten.eye.default": [1 << 20],
        "aten.repeat.default": [{"value": "linear"}, [1 << 20, 1 << 20]],
        "aten.arange.default": [1 << 40],
        "aten.pad.default": [{"value": "linear"}, [1 << 35, 0]],
    }.items():
        with pytest.raises(TerseFileError):
            tersify.load(file(with_node(name, args), tmp_path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # KiB


def test_products_of_sizes_do_not_grow_without_end(tmp_path):
    graph = copy.deepcopy(GRAPH)
    graph["nodes"] += [["n0", "size.mul", [1 << 30, 1 << 30], {}]]
    graph["nodes"] += [
        [f"n{i}", "size.mul", [{"value": f"n{i - 1}"}] * 2, {}] for i in range(1, 60)
    ]
    with pytest.raises(TerseFileError, match="a size of the graph is beyond"):
        tersify.load(file(graph, tmp_path))


def test_a_graph_nested_without_end_is_refused(tmp_path):
    deep = [{"value": "linear"}]
    for _ in range(400):
        deep = [deep]
    with pytest.raises(
        TerseFileError, match=r"nested too deeply|does not run|not valid JSON"
    ):
        tersify.load(file(with_node("aten.relu.default", deep), tmp_path))


@pytest.mark.parametrize(
    "name", ["forward", "_graph", "training", "a..b", "__class__", "_modules.x"]
)
def test_a_weight_does_not_take_the_place_of_what_the_network_is_made_of(
    name, tmp_path
):
    graph = {
        "inputs": [["x", [None, 2], "float32"]],
        "state": [[name, "float32", True]],
        "constants": {},
        "nodes": [],
        "output": {"value": "x"},
    }
    tersify.save(
        CompressedModel({name: torch.zeros(2)}, metadata={"graph": graph}),
        tmp_path / "net.terse",
    )
    with pytest.raises(TerseFileError):
        tersify.load(tmp_path / "net.terse")


def test_more_weights_than_are_allowed_are_refused(tmp_path):
    with pytest.raises(TerseFileError, match="allows 16"):
        tersify.load(file(GRAPH, tmp_path), max_decoded_bytes=16)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["linear", "0.weight", "aten.relu.default", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["value", "dtype", "names"]), inner)
    ),
    max_leaves=4,
)


@settings(max_examples=150)
@given(data=st.data())
def test_a_graph_changed_anywhere_is_refused_or_harmless(data, tmp_path_factory):
    """One place of the graph becomes something else."""
    graph = json.loads(json.dumps(GRAPH))
    place = graph
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and data.draw(st.booleans()):
            place = place[key]
        else:
            place[key] = data.draw(JSON)
            break
    path = file(graph, tmp_path_factory.mktemp("graphs"))
    try:
        loaded = tersify.load(path)
    except TerseFileError:
        return
    state = network().state_dict()
    assert all(
        torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items()
    )
