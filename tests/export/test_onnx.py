"""ONNX files give what the network gives; the integer graph gives what the integer
simulation gives.
"""

import numpy as np
import pytest
import torch

import tersify
from tersify import Recipe, Rule
from tersify.export.onnx_graph import export_onnx
from tersify.export.onnx_integer import export_integer_onnx
from tersify.lab import network
from tersify.methods import Lookup, from_table
from tersify.runtime.fixed import fixed_network

onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
pytest.importorskip("onnx", reason="needs onnx")


def run(path, x):
    session = onnxruntime.InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


def one_rule(**table) -> Recipe:
    return Recipe(rules=(Rule(methods=(from_table(table),)),))


@pytest.mark.parametrize(
    "table",
    [
        {"method": "lookup"},
        {
            "method": "lookup",
            "n": 8,
            "placement": "uniform",
            "fit": "nearest",
            "shift": False,
        },
        {"method": "lookup", "n": 2, "m": 6, "per_channel": True},
        {"method": "uniform", "bits": 4, "per_channel": True},
        {"method": "prune", "sparsity": 0.5},
    ],
)
def test_the_onnx_file_computes_what_the_network_computes(table, tmp_path):
    torch.manual_seed(0)
    model = network("digits-cnn").eval()
    packed = tersify.compress_(model, one_rule(**table))
    example = torch.randn(3, 1, 8, 8)
    counts = export_onnx(model, packed, example, tmp_path / "net.onnx")
    assert counts["tables"] == (
        0 if table["method"] == "prune" else len(packed.compressed())
    )
    with torch.no_grad():
        expected = model(example).numpy()
    assert run(tmp_path / "net.onnx", example.numpy()) == pytest.approx(
        expected, rel=1e-4, abs=1e-3
    )


class Folded(torch.nn.Module):
    """Views whose sizes are computed from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 6), torch.nn.Linear(24, 3)

    def forward(self, x):
        rows = self.first(x.reshape(x.shape[0] * 8, 8)).relu()
        rows = rows.view(x.shape[0] * 2, 24) + x.new_ones(1, 24).expand(
            2 * x.shape[0], 24
        )
        return self.last(rows).view(x.shape[0], -1)


class Recurrent(torch.nn.Module):
    """Its first state has the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.nn.LSTM(8, 6, num_layers=2, batch_first=True)
        self.again = torch.nn.GRU(6, 5, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.again(self.steps(x)[0])[0][:, -1])


class Begun(torch.nn.Module):
    """Tensors from nothing, of as many rows as the batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)

    def forward(self, x):
        rows = x.shape[0]
        places = torch.arange(rows, dtype=x.dtype)[:, None, None]
        began = (
            torch.zeros(rows, 1, 8) + torch.ones(rows, 1, 8) + x.new_ones(rows, 1, 8)
        )
        more = torch.full((rows, 1, 8), 0.5) + x.new_full((rows, 1, 8), 2.0) + places
        return self.layer(torch.cat([x, began, more, x.new_zeros(rows, 1, 8)], 1))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("network", [Folded, Recurrent, Begun])
def test_a_graph_of_a_file_becomes_onnx_of_any_batch(network, dense, tmp_path):
    torch.manual_seed(0)
    model = network().eval()
    packed = tersify.compress_(model, one_rule(method="lookup"))
    tersify.save(
        packed, tmp_path / "net.terse", network=model, example=torch.randn(2, 8, 8)
    )
    net = tersify.load(tmp_path / "net.terse")
    export_onnx(net, packed, torch.randn(2, 8, 8), tmp_path / "net.onnx", dense=dense)
    for batch in (1, 2, 5):
        x = torch.randn(batch, 8, 8)
        with torch.no_grad():
            expected = model(x).numpy()
        assert run(tmp_path / "net.onnx", x.numpy()) == pytest.approx(
            expected, rel=1e-4, abs=1e-4
        )


def test_four_bit_codes_make_the_file_smaller_than_dense_weights(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(200, 100)).eval()
    packed = tersify.compress_(model, "lut-4")
    export_onnx(model, packed, torch.randn(1, 200), tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size < 200 * 100 // 2 + 2000


@pytest.mark.parametrize(
    "settings", [{}, {"n": 3}, {"fit": "paper", "m": 8}, {"shift": False}]
)
def test_the_integer_graph_equals_the_integer_simulation_on_a_thousand_vectors(
    settings, tmp_path
):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(150, 40), torch.nn.ReLU(), torch.nn.Linear(40, 30)
    )
    packed = tersify.compress_(
        model, Recipe(rules=(Rule(methods=(Lookup(**settings),)),))
    )
    fixed = fixed_network(packed)
    export_integer_onnx(fixed, tmp_path / "integer.onnx")
    x = fixed.random_inputs(1000)
    y = fixed(x)
    assert np.array_equal(run(tmp_path / "integer.onnx", x.astype(np.int8)), y)
    assert len(np.unique(y)) > 50


def test_words_that_no_int8_holds_are_refused(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(40, 30))
    packed = tersify.compress_(model, Recipe(rules=(Rule(methods=(Lookup(m=10),)),)))
    with pytest.raises(ValueError, match="words of 10 bits"):
        export_integer_onnx(fixed_network(packed), tmp_path / "integer.onnx")


def test_a_dense_file_has_neither_tables_nor_norms_and_computes_the_same(tmp_path):
    import onnx

    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(1, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU())
    model = torch.nn.Sequential(*layers)
    model(torch.randn(8, 1, 8, 8) * 3)  # the norm learns a spread
    packed = tersify.compress_(model.eval(), one_rule(method="lookup"))
    x = torch.randn(3, 1, 8, 8)
    counts = export_onnx(model, packed, x, tmp_path / "net.onnx", dense=True)
    kinds = {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    assert (counts["tables"], kinds) == (0, {"Conv", "Relu"})
    with torch.no_grad():
        expected = model(x).numpy()
    assert run(tmp_path / "net.onnx", x.numpy()) == pytest.approx(expected, abs=1e-4)
