"""Other people's readers open what is exported."""

import numpy as np
import pytest
import torch
from sparse_nets import everything, pruned
from torch import nn

import tersify


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    model, tokens = everything()
    return tersify.collect(
        model,
        tokens,
        out=tmp_path_factory.mktemp("sparse") / "c",
        name="every",
        columns=12,
    )


def paths(collection, format, tmp_path):
    written = collection.export(format, tmp_path / format)
    return {path.name: path for path in written}


@pytest.mark.filterwarnings("ignore:The default value for .spmatrix.")
def test_scipy_reads_the_matrix_market_files_bit_for_bit(collection, tmp_path):
    from scipy.io import mmread

    files = paths(collection, "mtx", tmp_path)
    assert len(files) == 3 * len(collection)
    for op in collection:
        stem = op.name.replace("/", "__")
        for operand, wanted in (
            ("weight", op.weight.to_dense()),
            ("input", op.input.to_dense()),
            ("output", op.output),
        ):
            read = mmread(files[f"{stem}.{operand}.mtx"])
            dense = read if isinstance(read, np.ndarray) else read.toarray()
            assert dense.astype(np.float32).tobytes() == wanted.tobytes()


def test_binsparse_reads_every_array_file_of_the_default_format(collection):
    binsparse = pytest.importorskip("binsparse")
    from binsparse import conversions

    for op in collection:
        for operand, wanted in (
            ("weight", op.weight.to_dense()),
            ("input", op.input.to_dense()),
            ("output", op.output),
        ):
            read = binsparse.load_binsparse(
                collection.path / "arrays" / op.meta[operand]["file"]
            )
            dense = (
                conversions.to_numpy(read)
                if read.format == "DMATR"
                else conversions.to_scipy(read).toarray()
            )
            assert np.array_equal(dense, wanted)


def test_the_dlmc_file_has_the_pattern_in_three_lines(collection, tmp_path):
    files = paths(collection, "smtx", tmp_path)
    op = collection["every/conv"]
    sizes, pointers, columns = files["every__conv.smtx"].read_text().splitlines()
    height, width, nnz = map(int, sizes.split(","))
    assert (height, width, nnz) == (6, 12, op.weight.nnz)
    pattern = np.zeros((height, width), bool)
    starts = list(map(int, pointers.split()))
    for row in range(height):
        pattern[row, list(map(int, columns.split()))[starts[row] : starts[row + 1]]] = (
            True
        )
    assert np.array_equal(pattern, op.weight.to_dense() != 0)


def test_the_frostt_file_counts_from_one_in_the_weight_s_own_dimensions(tmp_path):
    for layer in (nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose2d(4, 6, 3, groups=2)):
        pruned(layer)
        kind = type(layer).__name__
        made = tersify.collect(
            layer, torch.randn(1, 4, 8, 8), out=tmp_path / kind, name="net"
        )
        (path,) = made.export("tns", tmp_path / f"{kind}-tns")
        rows = [line.split() for line in path.read_text().splitlines()]
        weight = torch.zeros(layer.weight.shape)
        for *place, value in rows:
            weight[tuple(int(n) - 1 for n in place)] = float(value)
        assert torch.equal(weight, layer.weight.detach() + 0.0)


def test_the_timeloop_files_describe_the_product_and_its_tiles(collection, tmp_path):
    yaml = pytest.importorskip("yaml")
    files = paths(collection, "timeloop", tmp_path)
    problem = yaml.safe_load(
        files["every__lstm.weight_ih_l0.problem.yaml"].read_text()
    )["problem"]
    op = collection["every/lstm.weight_ih_l0"]
    assert problem["version"] == 0.4
    assert problem["instance"].keys() == {"M", "N", "K", "densities"}
    assert (
        problem["instance"]["M"],
        problem["instance"]["N"],
        problem["instance"]["K"],
    ) == (48, 24, 16)
    weights = problem["instance"]["densities"]["Weights"]
    assert weights == {
        "distribution": "hypergeometric",
        "density": op.meta["weight"]["density"],
    }
    spaces = {space["name"]: space for space in problem["shape"]["data_spaces"]}
    assert spaces["Weights"]["projection"] == [[["M"]], [["K"]]]
    assert spaces["Outputs"]["read_write"] is True
    grouped = yaml.safe_load(files["every__conv.problem.yaml"].read_text())["problem"]
    assert grouped["instance"]["G"] == 2
    assert grouped["instance"]["M"] == 3
    seen = yaml.safe_load(files["every__lstm.weight_ih_l0.occupancy.yaml"].read_text())[
        "tile_occupancy"
    ]
    for tile in (4, 8, 16, 32):
        stats = seen["Weights"][f"{tile}x{tile}"]
        assert sum(stats["distribution"].values()) == pytest.approx(1)
        assert stats["mean"] * stats["tiles"] == pytest.approx(op.weight.nnz)


def test_a_structured_pattern_is_called_structured(tmp_path):
    yaml = pytest.importorskip("yaml")
    layer = nn.Linear(8, 8)
    with torch.no_grad():
        layer.weight *= torch.tensor([1.0, 0.0, 1.0, 0.0]).repeat(8, 2)
    made = tersify.collect(layer, torch.ones(2, 8), out=tmp_path / "c")
    problem, _ = made.export("timeloop", tmp_path / "t")
    densities = yaml.safe_load(problem.read_text())["problem"]["instance"]["densities"]
    assert densities["Weights"] == {"distribution": "fixed_structured", "density": 0.5}
    assert densities["Inputs"] == {"distribution": "fixed_structured", "density": 1.0}


def test_operations_whose_names_differ_in_signs_only_keep_files_of_their_own(tmp_path):
    for name in ("a:b", "a_b"):
        tersify.collect(
            pruned(nn.Linear(8, 8)),
            torch.randn(2, 8),
            out=tmp_path / "c",
            name=name,
            append=True,
        )
    written = tersify.Collection(tmp_path / "c").export("smtx", tmp_path / "x")
    assert [path.name for path in written] == ["a_b__linear.smtx", "a_b__linear-1.smtx"]


def test_unknown_exports_and_full_folders_are_refused(collection, tmp_path):
    with pytest.raises(
        ValueError, match="unknown export 'csv'; known: mtx, smtx, tns, timeloop"
    ):
        collection.export("csv", tmp_path / "x")
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="is not empty"):
        collection.export("mtx", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
