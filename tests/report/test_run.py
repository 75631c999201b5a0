import json

import pytest
import torch
from run_files import (
    TARGET,
    dense_run,
    packed_network,
    ternary_run,
    write_bench,
    write_history,
)

import tersify
from tersify import CompressedTensor
from tersify.report.figures import dense_accuracy
from tersify.report.run_files import find_runs
from tersify.report.run_graphics import file_parts, layers, speed_rows
from tersify.report.weight_histograms import code_histograms


def test_a_run_s_figures_come_from_its_files(tmp_path):
    [run] = find_runs([ternary_run(tmp_path / "log")])
    assert (run.name, run.network, run.data) == ("log", "digits-cnn", "digits")
    assert run.figure("accuracy") == 88.0
    assert run.times_smaller == pytest.approx(
        run.metrics["dense_bytes"] / (tmp_path / "log/model.terse").stat().st_size
    )
    assert run.file_bits_per_weight == pytest.approx(
        8 * run.metrics["file_bytes"] / 304
    )
    epochs, thresholds = run.column("Δ")
    assert epochs == list(range(1, 13))
    assert thresholds == sorted(thresholds)


def test_the_bytes_on_disk_are_those_of_the_file_even_where_the_metrics_are_older(
    tmp_path,
):
    [run] = find_runs([ternary_run(tmp_path / "log", file_bytes=7)])
    assert run.figure("file_bytes") == (tmp_path / "log/model.terse").stat().st_size


def test_a_run_in_progress_shows_its_last_whole_row(tmp_path):
    write_history(tmp_path, 5, compressed=True)
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"epoch": 6, "accur')
    [run] = find_runs([tmp_path])
    assert not run.is_finished
    assert run.figure("epoch") == 5
    assert run.figure("accuracy") == 82.0


def test_a_lone_file_still_tells_its_sparsity_and_size(tmp_path):
    packed = packed_network()
    tersify.save(packed, tmp_path / "model.terse")
    [run] = find_runs([tmp_path])
    assert run.figure("sparsity") == packed.sparsity_percent()
    assert run.figure("file_bytes") == (tmp_path / "model.terse").stat().st_size
    assert run.figure("accuracy") is None


def test_runs_below_a_directory_are_found_and_told_apart_by_the_shortest_names(
    tmp_path,
):
    for name in ("a/seed1", "b/seed1"):
        ternary_run(tmp_path / name)
    dense_run(tmp_path / "a/seed1/dense-twin")
    runs = find_runs([tmp_path, tmp_path / "a"])
    assert [run.name for run in runs] == ["a/seed1", "seed1/dense-twin", "b/seed1"]


def test_the_dense_twin_is_the_dense_run_of_the_same_network_and_data(tmp_path):
    ternary_run(tmp_path / "ours")
    dense_run(
        tmp_path / "other", accuracy=99.0, target={"name": "resnet20", "options": {}}
    )
    dense_run(
        tmp_path / "twin",
        accuracy=90.0,
        target=TARGET | {"options": TARGET["options"] | {"init": "he"}},
    )
    ternary_run(tmp_path / "said", dense_accuracy=91.0)
    runs = {run.name: run for run in find_runs([tmp_path])}
    found = {
        name: dense_accuracy(run, list(runs.values())) for name, run in runs.items()
    }
    assert found == {"ours": 90.0, "said": 91.0, "other": None, "twin": None}


def test_the_parts_of_the_file_add_up_to_it(tmp_path):
    [run] = find_runs([ternary_run(tmp_path / "log")])
    assert (
        sum(part["bytes"] for part in file_parts(run))
        == (tmp_path / "log/model.terse").stat().st_size
    )


def test_layers_are_the_weights_proper_with_their_measured_times(tmp_path):
    folder = ternary_run(tmp_path / "log")
    write_bench(folder)
    [run] = find_runs([folder])
    assert [(row["name"], row.get("ms")) for row in layers(run)] == [
        ("conv1.weight", 0.25),
        ("fc.weight", None),
    ]
    assert [row["peer"] for row in speed_rows(run)] == ["tersify", "torch"]


def test_codes_are_counted_in_the_order_of_their_values():
    book = torch.tensor([0.0, 1.0, -1.0])
    codes = torch.tensor([0, 0, 0, 1, 2, 2], dtype=torch.uint8)
    [histogram] = code_histograms(
        {"w": CompressedTensor(shape=(6,), codes=codes, codebook=book)}
    )
    assert (histogram.labels, histogram.counts) == (["−1", "0", "1"], [2, 3, 1])
    scaled = CompressedTensor(shape=(6,), codes=codes, codebook=2 * book)
    plain = CompressedTensor(shape=(6,), codes=codes, codebook=book)
    [histogram] = code_histograms({"w": plain, "v": scaled})
    assert (histogram.labels, histogram.counts) == (["−", "0", "+"], [4, 6, 2])


def test_a_pruned_tensor_counts_zeros_and_survivors():
    mask = torch.tensor([0, 1, 1, 0, 0], dtype=torch.uint8)
    [histogram] = code_histograms(
        {"w": CompressedTensor(shape=(5,), codes=mask, values=torch.ones(2))}
    )
    assert (histogram.labels, histogram.counts) == (["0", "kept"], [3, 2])


@pytest.mark.parametrize(
    "damage",
    [
        "[1, 2]",
        "{",
        "",
        "[" * 100_000,
        '{"accuracy": 1e999, "sparsity": NaN, "x": "y"}',
    ],
)
def test_damaged_files_are_told_or_left_out_and_the_rest_is_shown(damage, tmp_path):
    folder = ternary_run(tmp_path / "log")
    for name in (
        "metrics.json",
        "latents.json",
        "bench.json",
        "checkpoint/run.json",
        "history.jsonl",
    ):
        (folder / name).write_text(damage)
    (folder / "model.terse").write_bytes(b"an older format")
    [run] = find_runs([folder])
    assert run.metrics == {}
    assert run.recipe
    assert any(note.startswith("model.terse could not be read") for note in run.notes)


def test_huge_numbers_are_no_figures(tmp_path):
    (tmp_path / "metrics.json").write_text(
        json.dumps({"accuracy": 10**400, "sparsity": True, "file_bytes": 7})
    )
    [run] = find_runs([tmp_path])
    assert run.metrics == {"file_bytes": 7}
