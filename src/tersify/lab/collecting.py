"""A collection from names: the network, its weights, a calibration batch and what is
known of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tersify
from tersify import codec
from tersify.codec import DEFAULT_MAX_DECODED_BYTES
from tersify.lab.data import dataset, normalize
from tersify.lab.random_inputs import random_input
from tersify.lab.stored_networks import load_network, load_weights
from tersify.lab.targets import resolve_target
from tersify.lab.trainer import check_fits, evaluate
from tersify.sparse import Collection


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which network, with which weights, pruned by which recipe, runs on which batch.

    `target` is a name, or a .terse file. Without `data` the batch is random, of the
    size `shape`. With `evaluate` the accuracy on the test set of `data` goes into the
    collection.
    """

    target: str
    weights: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    data: str | None = None
    data_root: Path | None = None
    shape: str | None = None
    batch: int = 8
    evaluate: bool = False
    max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES

    def __post_init__(self) -> None:
        if self.evaluate and self.data is None:
            raise ValueError("--evaluate needs --data")
        if self.target.endswith(".terse") and self.weights is not None:
            raise ValueError(
                f"{self.target} has its own weights; leave --weights away, or name the network instead of the file"
            )

    @property
    def name(self) -> str:
        """A file's name without folders and endings; a network's name as it is."""
        path, _, function = self.target.rpartition(":")
        if self.target.endswith(".terse"):
            path, function = self.target, ""
        stem = Path(path).stem if "/" in path or "." in path else path
        return ":".join(part for part in (stem, Path(function).name) if part)


def collect_from(
    source: Source, out: Path, *, name: str | None = None, **settings: Any
) -> Collection:
    """Run the network on its batch and write the collection; `settings` are those of
    `tersify.collect`.
    """
    net, facts = _network(source)
    example, calibration = _example(net, source, facts.pop("input", None))
    if source.recipe is not None:
        tersify.compress_(net, source.recipe)
        facts["accuracy"] = None  # it was that of the weights before
    if source.evaluate:
        loaded = dataset(str(source.data), root=source.data_root)
        facts |= evaluate(
            net, loaded, loaded.test, device=torch.device("cpu"), amp=False
        )
    metadata = {"target": source.target, "calibration": calibration}
    metadata |= {key: value for key, value in facts.items() if key == "checkpoint"}
    return tersify.collect(
        net,
        example,
        out=out,
        name=name or source.name,
        recipe=source.recipe,
        accuracy=facts.get("accuracy"),
        metadata=metadata,
        **settings,
    )


def _network(source: Source) -> tuple[nn.Module, dict[str, Any]]:
    """The network in eval mode, and what its file says about it."""
    is_file = source.target.endswith(".terse")
    file = Path(source.target) if is_file else source.weights
    limit: dict[str, Any] = {"max_decoded_bytes": source.max_decoded_bytes}
    if file is None:
        return resolve_target(source.target, **source.options).eval(), {}
    if file.suffix == ".terse":
        remedy = (
            f"name it and its file: tersify collect file.py:function --weights {file}"
        )
        known = None if is_file else source.target
        net = load_network(
            file, target=known, options=source.options, remedy=remedy, **limit
        )
        stored = codec.open(file, **limit).metadata
    else:
        net, stored = (
            load_weights(
                resolve_target(source.target, **source.options), file, **limit
            ).eval(),
            {},
        )
    measured = stored.get("measured")
    metrics = file.parent / "metrics.json"
    # A run directory: its measured accuracy belongs to this file.
    if file.name == "model.terse" and metrics.is_file():
        measured = json.loads(metrics.read_text(encoding="utf-8"))
    accuracy = measured.get("accuracy") if isinstance(measured, dict) else None
    checkpoint = {
        "name": file.name,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    return net, {
        "checkpoint": checkpoint,
        "accuracy": accuracy,
        "input": stored.get("input"),
    }


def _example(net: nn.Module, source: Source, stored: Any) -> tuple[Tensor, str]:
    """One batch, and where it comes from: training images, random token numbers, or
    noise of a known shape.
    """
    if source.data is not None:
        loaded = dataset(source.data, root=source.data_root)
        check_fits(net, loaded)
        chosen = torch.randperm(
            len(loaded.train), generator=torch.Generator().manual_seed(0)
        )[: source.batch]
        return normalize(
            loaded.train.images[chosen], loaded
        ), f"{len(chosen)} training samples of {source.data}"
    example = random_input(net, stored, source.shape, source.batch, other="--data, or ")
    kind = "normal" if example.is_floating_point() else "token"
    return example, f"{'×'.join(map(str, example.shape))} random {kind} numbers"
