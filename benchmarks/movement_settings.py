"""Which settings suit movement and magnitude pruning of MiniLM, with a teacher and
without one: for a GPU.

    python benchmarks/movement_settings.py --data-root data --json settings.json [--quick]

Every setting trains three networks, each measured on a fifth of the training sentences
that it has not seen; the two best of each group then train on the other two fifths. The
best mean of a group wins. The test set is never looked at. The winners belong into
`recipes/movement-85.toml` and the experiment `sparse-bert`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from stacked_encoders import FOLDS, Sentences, Setting, Stack, Trainer
from torch import Tensor

from tersify.lab import dataset
from tersify.lab.experiments.provenance import provenance

DENSE = Setting(kind="dense", lr=5e-5)
DENSE_EPOCHS = 3
FLOOR = 0.05  # of every layer's weights that stay where layers compete
FIRST_FOLDS, FINALISTS = 3, 2


def settings() -> list[Setting]:
    """Those of movement first. Both kinds get the same rates, scopes and teachers;
    movement has its own speeds.
    """
    everywhere: dict[str, Any] = {"scope": "global", "floor": FLOOR}
    mover = Setting(kind="movement", lr=2e-4, gain=1.0, lines=3.0, head_start=1.0)
    magnitude, movement = [], []
    for each, one in (
        (movement, mover),
        (magnitude, Setting(kind="magnitude", lr=2e-4)),
    ):
        taught = replace(one, teacher=0.7)
        each += [taught, replace(taught, **everywhere), replace(taught, teacher=0.9)]
        each += [
            one,
            replace(one, **everywhere),
            replace(one, lr=1e-4),
            replace(one, lr=1e-4, **everywhere),
        ]
    magnitude.append(Setting(kind="magnitude", lr=4e-4, teacher=0.7))
    for own in ({"lines": 1.0}, {"gain": 0.3}, {"lines": 1.0, "lr": 4e-4}):
        movement.append(replace(mover, teacher=0.7, **own))
    movement.append(replace(mover, lines=1.0))
    return [*movement, *magnitude]


def group(one: Setting) -> tuple[str, bool]:
    return one.kind, one.teacher > 0


class Search:
    """Trains settings on folds, and remembers what each reached."""

    def __init__(
        self, train: Any, file: Path, *, epochs: int, layers: int, device: str
    ) -> None:
        self._tokens, self._labels = train.images.to(device), train.labels.to(device)
        self._file, self._epochs, self._layers, self._device = (
            file,
            epochs,
            layers,
            device,
        )
        self._start = time.perf_counter()
        self.runs: list[dict[str, Any]] = []
        dense = self._trained([DENSE], range(FOLDS), min(DENSE_EPOCHS, epochs), 0.5)
        self._teacher = dense.answers(self._tokens.expand(FOLDS, -1, -1))

    def run(self, each: Sequence[Setting], folds: Sequence[int]) -> None:
        stack = self._trained(
            each, folds, self._epochs, 1.0, self._teacher[list(folds)]
        )
        gone = sum((~mask).flatten(1).sum(1) for mask in stack.mask.values())
        zeros = gone / sum(mask[0].numel() for mask in stack.mask.values())
        print(f"zeros {zeros.min():.4f} to {zeros.max():.4f}", flush=True)

    def _trained(
        self,
        each: Sequence[Setting],
        folds: Sequence[int],
        epochs: int,
        warmup: float,
        teacher: Tensor | None = None,
    ) -> Stack:
        data = Sentences(self._tokens, self._labels, folds)
        stack = Stack(len(each), folds, self._file, self._layers, self._device)
        Trainer(each, stack, data, epochs).run(
            warmup, teacher, prune=each[0] is not DENSE
        )
        wanted = self._labels[data.held_out]
        found = stack.answers(self._tokens[data.held_out]).unflatten(
            0, (len(each), len(folds))
        )
        for one, answers in zip(each, found, strict=True):
            for fold, logits, labels in zip(folds, answers, wanted, strict=True):
                figures = {
                    "accuracy": 100
                    * (logits.argmax(1) == labels).float().mean().item(),
                    "loss": F.cross_entropy(logits, labels).item(),
                }
                self.runs.append(
                    asdict(one) | {"name": one.name, "fold": fold} | figures
                )
        print(
            f"{len(each)} settings on {len(folds)} folds, {self.seconds():.0f} s after the start",
            flush=True,
        )
        return stack

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def mean(self, one: Setting) -> float:
        return statistics.mean(
            run["accuracy"] for run in self.runs if run["name"] == one.name
        )


def shown(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each setting, the best first."""
    rows = []
    for name in {run["name"]: None for run in runs}:
        own = [run for run in runs if run["name"] == name]
        hits = [run["accuracy"] for run in own]
        rows.append(
            {
                "name": name,
                "accuracy": statistics.mean(hits),
                "folds": len(own),
                "std": statistics.stdev(hits) if len(own) > 1 else 0.0,
                "loss": statistics.mean(r["loss"] for r in own),
            }
        )
    return sorted(rows, key=lambda row: -row["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument(
        "--seconds",
        type=float,
        help="the best go on to the other folds only if no more have passed",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few sentences, one layer: shows that the path works",
    )
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = dataset("polarity", root=given.data_root).train
    each = settings()
    if given.quick:
        train, given.epochs, given.layers = train[:240], 2, 1
        each = list({(group(one), one.scope): one for one in each}.values())
    file = given.data_root / "minilm" / "model.safetensors"
    search = Search(
        train, file, epochs=given.epochs, layers=given.layers, device=device
    )
    search.run(each, range(FIRST_FOLDS))
    finalists: list[Setting] = []
    chosen: dict[str, dict[str, Any]] = {}
    groups = {group(one): None for one in each}
    for which in groups:
        finalists += sorted(
            (one for one in each if group(one) == which), key=search.mean
        )[-FINALISTS:]
    if given.seconds is None or search.seconds() < given.seconds:
        search.run(finalists, range(FIRST_FOLDS, FOLDS))
    for kind, taught in groups:
        best = max(
            (one for one in finalists if group(one) == (kind, taught)), key=search.mean
        )
        chosen[f"{kind}{'' if taught else '-alone'}"] = asdict(best) | {
            "accuracy": search.mean(best)
        }
    means = shown(search.runs)
    for row in means:
        print(
            f"{row['accuracy']:6.2f} ± {row['std']:.2f}  loss {row['loss']:.3f}  {row['folds']} folds  {row['name']}"
        )
    for which, setting in chosen.items():
        print(f"CHOSEN {which}: {setting}")
    if given.json:
        found = {
            "name": "movement-settings",
            **provenance(),
            "chosen": chosen,
            "means": means,
            "runs": search.runs,
        }
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
