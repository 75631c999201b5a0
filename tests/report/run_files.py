"""Run directories as the trainer leaves them, made without training."""

import json
import math

import torch

import tersify
from tersify import CompressedModel, CompressedTensor
from tersify.tensor import latent_histogram

RECIPE = '[[rules]]\nmethods = [{ method = "ternary", regime = "log" }]\n'
TARGET = {"name": "digits-cnn", "options": {"classes": 10}}


def ternary(*shape):
    codes = torch.randint(0, 3, shape, dtype=torch.uint8)
    return CompressedTensor(
        shape=shape, codes=codes, codebook=torch.tensor([0.0, -1.0, 1.0])
    )


def packed_network(data="digits", target=TARGET):
    tensors = {
        "conv1.weight": ternary(8, 3, 3, 3),
        "conv1.bias": torch.randn(8),
        "fc.weight": ternary(10, 8),
    }
    return CompressedModel(
        tensors, recipe=RECIPE, metadata={"data": data, "target": target}
    )


def write_history(folder, epochs, *, compressed):
    with (folder / "history.jsonl").open("w", encoding="utf-8") as file:
        for epoch in range(1, epochs + 1):
            row = {
                "epoch": epoch,
                "loss": 2 / epoch,
                "accuracy": 90 - 40 / epoch,
                "train_accuracy": 91 - 40 / epoch,
                "lr": 0.01,
                "seconds": 1.5,
            }
            if compressed:
                row |= {
                    "sparsity": 80 - 20 / epoch,
                    "entropy_bits": 0.9 + 0.1 / epoch,
                    "Δ": math.log(1 + epoch) / 4,
                }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def ternary_run(folder, *, epochs=12, data="digits", target=TARGET, **metrics):
    """A finished run with everything that a run directory may hold, but for bench.json."""
    (folder / "checkpoint").mkdir(parents=True)
    write_history(folder, epochs, compressed=True)
    packed = packed_network(data, target)
    tersify.save(packed, folder / "model.terse")
    size = (folder / "model.terse").stat().st_size
    figures = {
        "accuracy": 88.0,
        "accuracy_best": 89.0,
        "best_epoch": 9,
        "sparsity": packed.sparsity_percent(),
        "entropy_bits": packed.entropy_bits(),
        "file_bytes": size,
        "dense_bytes": packed.dense_bytes(),
        "train_seconds": 75.0,
        "epochs": epochs,
        "parameters": 304,
    }
    (folder / "metrics.json").write_text(json.dumps(figures | metrics))
    (folder / "recipe.toml").write_text(RECIPE)
    latents = {
        name: latent_histogram(torch.rand(40) - 0.5)
        for name in ("conv1.weight", "fc.weight")
    }
    (folder / "latents.json").write_text(json.dumps(latents))
    metadata = {"data": data, "target": target}
    (folder / "checkpoint" / "run.json").write_text(
        json.dumps(
            {
                "data": data,
                "metadata": metadata,
                "recipe": RECIPE,
                "train": {"seed": 0, "lr": 0.01, "amp": False},
            }
        )
    )
    return folder


def dense_run(folder, *, accuracy=90.0, data="digits", target=TARGET):
    folder.mkdir(parents=True)
    write_history(folder, 12, compressed=False)
    metadata = {"data": data, "target": target}
    tersify.save(
        CompressedModel({"fc.weight": torch.randn(10, 8)}, metadata=metadata),
        folder / "model.terse",
    )
    (folder / "metrics.json").write_text(
        json.dumps({"accuracy": accuracy, "file_bytes": 500, "dense_bytes": 320})
    )
    return folder


def write_bench(folder):
    rows = [
        {
            "peer": "tersify",
            "batch": 8,
            "threads": 2,
            "median_ms": 1.5,
            "best_ms": 1.4,
            "spread_ms": 0.1,
        },
        {
            "peer": "torch",
            "batch": 8,
            "threads": 2,
            "median_ms": 4.5,
            "best_ms": 4.4,
            "spread_ms": 0.3,
        },
        {"peer": "openvino", "batch": 8, "threads": 2, "missing": "not installed"},
    ]
    layers = [{"name": "conv1", "ms": 0.25}]
    (folder / "bench.json").write_text(
        json.dumps({"rows": rows, "layers": layers, "machine": {"cpu": "a CPU"}})
    )
