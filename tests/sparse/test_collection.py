"""Collections: written whole or not at all, reloaded bit for bit, run by every backend,
refused when damaged.
"""

import hashlib

import numpy as np
import pytest
import torch
from sparse_nets import OPERATIONS, everything, pruned
from torch import nn

import tersify
from tersify.sparse import BACKENDS, FORMATS, CollectionError
from tersify.sparse.collection_index import ARRAYS, WEIGHT_FIRST
from tersify.sparse.lowering import Geometry, lower_input, lower_weight, multiply


@pytest.fixture(scope="module", params=["auto", "W@X", "X@W.T"])
def collection(request, tmp_path_factory):
    model, tokens = everything()
    out = tmp_path_factory.mktemp("sparse") / "collection"
    return tersify.collect(
        model,
        tokens,
        out=out,
        name="every",
        columns=20,
        order=request.param,
        licence="CC0-1.0",
    )


def test_every_operation_reloads_bit_for_bit(collection):
    model, _ = everything()
    assert collection.names == [f"every/{name}" for name in OPERATIONS]
    again = tersify.Collection(collection.path)
    state = model.state_dict()
    for op in again:
        weight = op.weight.to_dense()
        if op.kind in ("linear", "lstm", "gru"):
            assert (
                weight.tobytes()
                == (state[op.meta["parameter"]] + 0.0).numpy().tobytes()
            )
        for format in FORMATS:
            assert op.weight.to(format).to_dense().tobytes() == weight.tobytes()
            assert (
                op.input.to(format).to_dense().tobytes()
                == op.input.to_dense().tobytes()
            )
    assert again.verify() == sum(
        p.stat().st_size for p in (collection.path / ARRAYS).iterdir()
    )


@pytest.mark.parametrize("backend", [*BACKENDS])
def test_every_backend_meets_the_stored_output(backend, collection):
    pytest.importorskip("sparse") if backend == "pydata" else None
    for op in collection:
        assert op.run(backend).shape == op.output.shape
        assert op.meta.get("layer_error", 0.0) <= op.meta["tolerance"]


def test_a_wrong_result_is_refused(collection):
    op = collection["every/conv"]
    wrong = op.output.copy()
    wrong[0, 0] += 10 * op.meta["tolerance"]
    with pytest.raises(ValueError, match="mine differs from the stored output by"):
        op.check(wrong, "mine")
    wrong[0, 0] = np.nan
    with pytest.raises(ValueError, match="differs from the stored output by nan"):
        op.check(wrong)
    with pytest.raises(ValueError, match="has shape"):
        op.check(wrong[1:])


def test_a_kernel_s_result_may_be_a_torch_tensor_or_a_list(collection):
    op = collection["every/conv"]
    assert op.check(torch.from_numpy(op.output)) == op.check(op.output.tolist()) == 0
    assert op.check(torch.from_numpy(op.output).requires_grad_()) == 0


def test_the_metadata_says_what_the_operation_is(collection):
    meta = collection["every/conv"].meta
    assert (meta["M"], meta["N"], meta["K"], meta["groups"], meta["kind"]) == (
        6,
        20,
        12,
        2,
        "conv1d",
    )
    assert meta["columns"] == {"kept": 20, "of": 24, "rule": meta["columns"]["rule"]}
    assert meta["geometry"]["padding"] == [[1, 1]]
    assert meta["geometry"]["input_size"] == [8, 8]
    assert "kernel place" in meta["layout"]["weight"]
    assert set(meta["weight"]["format_bytes"]) == set(FORMATS)
    assert meta["weight"]["nnz"] == np.count_nonzero(
        collection["every/conv"].weight.to_dense()
    )
    assert {"row_nnz", "block_occupancy", "n_m", "density", "best_format"} <= set(
        meta["weight"]
    )
    assert 0 < meta["input"]["density"] <= 1
    assert meta["model"]["licence"] == "CC0-1.0"
    assert len(meta["model"]["state_sha256"]) == 64
    assert collection["every/table"].meta["input"]["density"] == 1 / 50


def test_a_stored_convolution_is_the_lowered_one(tmp_path):
    layer = pruned(nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=True))
    images = torch.randn(2, 3, 9, 9)
    (op,) = tersify.collect(layer, images, out=tmp_path / "c", columns=1000)
    stored = {
        key: value for key, value in op.meta["geometry"].items() if key != "input_size"
    }
    geometry = Geometry.from_mapping(stored)
    assert op.order == "W@X"
    assert (
        op.weight.to_dense().tobytes()
        == (lower_weight(layer.weight, geometry) + 0.0).detach().numpy().tobytes()
    )
    assert np.array_equal(op.input.to_dense(), lower_input(images, geometry).numpy())
    exact = multiply(
        lower_weight(layer.weight, geometry).double(),
        lower_input(images, geometry).double(),
    )
    assert op.output.tobytes() == (exact.float() + 0.0).detach().numpy().tobytes()


def test_the_recipe_tells_method_and_target(tmp_path):
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        '[[rules]]\nweights = "0.*"\nmethods = [{ method = "prune", sparsity = 0.75 }]\n'
    )
    packed = tersify.compress_(model, recipe)
    x = torch.randn(4, 20)
    (op,) = tersify.collect(
        model, x, out=tmp_path / "a", recipe=recipe, accuracy=91.5, name="mlp"
    )
    assert op.meta["method"][0]["method"] == "prune"
    assert op.meta["target_sparsity"] == 0.75
    assert op.meta["weight"]["density"] == 0.25
    assert op.meta["model"]["accuracy"] == 91.5
    # A network from a .terse file brings its recipe along.
    tersify.save(packed, tmp_path / "net.terse")
    loaded = tersify.load(
        tmp_path / "net.terse",
        into=nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20)),
    )
    (again,) = tersify.collect(loaded, x, out=tmp_path / "b", name="mlp")
    assert again.meta["method"] == op.meta["method"]
    assert again.meta["model"]["state_sha256"] == op.meta["model"]["state_sha256"]


@pytest.mark.parametrize("format", [*FORMATS, "best"])
def test_weights_are_stored_in_the_wanted_format(format, tmp_path):
    layer = pruned(nn.Linear(33, 21))
    (op,) = tersify.collect(
        layer, torch.randn(4, 33), out=tmp_path / "c", format=format
    )
    assert op.weight.format == (
        op.meta["weight"]["best_format"] if format == "best" else format
    )
    assert np.array_equal(op.weight.to_dense(), layer.weight.detach().numpy())
    assert op.weight.size_bytes == op.meta["weight"]["format_bytes"][op.weight.format]
    op.run("torch-csr")


def test_half_precision_is_widened_and_double_stays(tmp_path):
    for dtype, wanted in ((torch.bfloat16, np.float32), (torch.float64, np.float64)):
        layer = pruned(nn.Linear(8, 8)).to(dtype)
        (op,) = tersify.collect(
            layer, torch.randn(4, 8, dtype=dtype), out=tmp_path / str(dtype)
        )
        assert op.weight.to_dense().dtype == wanted
        assert op.meta["dtype"] == str(dtype).removeprefix("torch.")
        op.run("tersify")


@pytest.mark.parametrize(
    ("inputs", "outputs", "batch"), [(1, 1, 1), (33, 1, 3), (1, 17, 2), (40, 40, 1)]
)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_backends_take_empty_full_and_odd_weights(
    inputs, outputs, batch, density, tmp_path
):
    layer = pruned(nn.Linear(inputs, outputs), density)
    for order in ("W@X", "X@W.T"):
        out = tmp_path / order.replace("@", "")
        (op,) = tersify.collect(
            layer, torch.randn(batch, inputs), out=out, order=order, min_sparsity=0
        )
        for backend in BACKENDS:
            op.run(backend)
        for format in ("mtx", "smtx", "tns", "timeloop"):
            tersify.Collection(out).export(format, tmp_path / f"{format}{order}")


def test_weights_behind_a_session_or_a_torch_mask_are_those_the_network_uses(tmp_path):
    from torch.nn.utils import prune

    net = nn.Sequential(
        nn.Linear(16, 16), nn.Linear(16, 16), nn.MultiheadAttention(16, 2)
    )
    net.forward = lambda x: net[2](*[net[1](net[0](x))] * 3)
    prune.random_unstructured(net[0], "weight", 0.5)
    rule = '[[rules]]\nweights = ["1.weight", "2.*"]\nmethods = [{ method = "prune", sparsity = 0.75 }]\n'
    session = tersify.attach(
        net, tersify.Recipe.from_toml(rule), epochs=1, steps_per_epoch=1
    )
    session.advance_to_end()
    made = tersify.collect(net, torch.randn(4, 16), out=tmp_path / "c", name="net")
    assert made.names == [
        "net/0",
        "net/1",
        *(f"net/2.{part}_proj" for part in ("q", "k", "v", "out")),
    ]
    assert (
        made["net/0"].weight.to_dense().tobytes()
        == (net[0].weight + 0.0).detach().numpy().tobytes()
    )
    assert made["net/1"].meta["weight"]["density"] == 0.25
    assert made["net/2.out_proj"].meta["layer_error"] < 1e-6
    assert made.models["net"]["skipped"] == {}


def test_numbers_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match="linear: its weight or its input holds NaN"):
        tersify.collect(
            pruned(nn.Linear(8, 8)), torch.full((2, 8), torch.nan), out=tmp_path / "c"
        )
    assert not any(tmp_path.iterdir())


def test_networks_are_appended_to_one_collection(tmp_path):
    for name in ("one", "two"):
        tersify.collect(
            pruned(nn.Linear(8, 8)),
            torch.randn(2, 8),
            out=tmp_path / "c",
            name=name,
            append=True,
        )
    both = tersify.Collection(tmp_path / "c")
    assert both.names == ["one/linear", "two/linear"]
    both.verify()
    with pytest.raises(ValueError, match="holds a network 'two' already"):
        tersify.collect(
            pruned(nn.Linear(8, 8)),
            torch.randn(2, 8),
            out=tmp_path / "c",
            name="two",
            append=True,
        )
    files = sorted((tmp_path / "c").rglob("*"))
    with pytest.raises(
        ValueError,
        match=r"Linear cannot run on the example: mat1 and mat2 .*; give one of the shape and type that it takes",
    ):
        tersify.collect(
            pruned(nn.Linear(8, 8)),
            torch.randn(2, 9),
            out=tmp_path / "c",
            name="three",
            append=True,
        )
    assert sorted((tmp_path / "c").rglob("*")) == files


def test_writing_that_stops_half_way_leaves_nothing_behind(tmp_path, monkeypatch):
    from tersify.sparse import collection_writer

    model, tokens = everything()
    tersify.collect(
        pruned(nn.Linear(8, 8)), torch.randn(2, 8), out=tmp_path / "old", name="linear"
    )
    before = {path: path.read_bytes() for path in (tmp_path / "old").rglob("*.*")}
    written = []

    def full_disk(matrix, path, write=collection_writer._write):
        if len(written) == 7:
            raise OSError(28, "No space left on device")
        written.append(path)
        return write(matrix, path)

    monkeypatch.setattr(collection_writer, "_write", full_disk)
    for out, append in ((tmp_path / "new", False), (tmp_path / "old", True)):
        written.clear()
        with pytest.raises(OSError, match="No space"):
            tersify.collect(model, tokens, out=out, append=append)
        assert len(written) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert {
        path: path.read_bytes() for path in (tmp_path / "old").rglob("*.*")
    } == before


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="is not empty"):
        tersify.collect(pruned(nn.Linear(8, 8)), torch.randn(2, 8), out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(CollectionError, match=r"holds no collection\.json"):
        tersify.collect(
            pruned(nn.Linear(8, 8)), torch.randn(2, 8), out=tmp_path, append=True
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "ellpack"}, "unknown format 'ellpack'"),
        ({"columns": 0}, "columns must be a whole number of at least 1, got 0"),
        ({"columns": 2.5}, "columns must be a whole number of at least 1, got 2.5"),
        ({"min_sparsity": 1.5}, "fraction of zeros, 0..1, got 1.5"),
        ({"order": "X@W"}, "order must be one of auto, W@X, X@W.T"),
        ({"name": "../evil"}, "letters, digits"),
        ({"min_sparsity": 0.99}, "no layer with at least 99 % zeros"),
    ],
)
def test_a_bad_argument_is_explained_and_writes_nothing(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        tersify.collect(
            pruned(nn.Linear(8, 8)), torch.randn(2, 8), out=tmp_path / "c", **options
        )
    assert not any(tmp_path.iterdir())


def test_a_dense_network_is_collected_only_when_asked_for(tmp_path):
    with pytest.raises(ValueError, match="no layer with at least 10 % zeros"):
        tersify.collect(nn.Linear(8, 8), torch.randn(2, 8), out=tmp_path / "c")
    (op,) = tersify.collect(
        nn.Linear(8, 8), torch.randn(2, 8), out=tmp_path / "c", min_sparsity=0
    )
    assert op.meta["weight"]["density"] == 1


def test_the_same_network_gives_the_same_files(tmp_path):
    digests = []
    for name in ("a", "b"):
        model, tokens = everything()
        path = tersify.collect(model, tokens, out=tmp_path / name, name="every").path
        digests.append(
            [
                hashlib.sha256(p.read_bytes()).hexdigest()
                for p in sorted(path.rglob("*.*"))
            ]
        )
    assert digests[0] == digests[1]


def test_the_tolerance_is_a_hundred_thousandth_of_the_largest_sum_of_magnitudes(
    collection,
):
    op = collection["every/conv"]
    weight, given = (
        torch.from_numpy(m.to_dense()).double().abs() for m in (op.weight, op.input)
    )
    columns = given if op.meta["order"] == WEIGHT_FIRST else given.T
    largest = float(multiply(weight, columns, op.groups).max())
    assert op.meta["tolerance"] == pytest.approx(1e-5 * largest, rel=1e-6)
