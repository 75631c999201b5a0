"""Networks of other people with real weights × recipes: quality, bytes and speed beside
other engines.

`python benchmarks/zoo.py [--quick] [--json FILE] [--only NAME ...] [--data DIR]
[--recipes NAME ...] [--cifar DIR] [--files DIR] [--without ENGINE ...]
[--no-speed | --no-quality]`

A network whose package or data is missing is left out with a line. Quality is measured
on inputs that compression did not see; bytes are those of whole files; times are CPU
times of the process on one thread and one item, in turns. `--only` measures some
networks and `--recipes` some recipes, and the figures of the others in the JSON file
stay. `--files` keeps what was trained, so that another call need not train again.
`--no-speed` measures quality and bytes alone and keeps the times of an earlier run;
`--no-quality` measures times alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# first: it sets what must stand before torch is imported
from common import interleaved, own_warnings_alone, report

import engines  # isort: skip
import torch
import zstandard
from peers import coded_sizes, peer_versions
from torch import Tensor, nn
from zoo_entries import ENTRIES, Places, Subject
from zoo_training import allocated, compressed

import tersify
from tersify.lab.experiments.provenance import commit

DATA = Path(__file__).parents[2] / "shared" / "data"
READY, ALLOCATED = ("lut-4", "lut-4-sensitivity", "uniform-8"), "lut-allocated"
TRAINED = ("lut-4-sensitivity-trained", "prune-l1-90-trained", "twn-trained")
RECIPES = (*READY, ALLOCATED, *TRAINED, "as-shipped")
ROUNDS, WARM, SHORTEST_MS = 9, 2, 20.0
EVAL_BATCH = 50


@torch.no_grad()
def outputs(model: Any, inputs: Tensor) -> Tensor:
    return torch.cat([model(part) for part in inputs.split(EVAL_BATCH)])


Made = tuple[nn.Module, Any]  # with its new weights, and the tensors of its file


def variants(
    name: str, subject: Subject, folder: Path, recipes: Sequence[str]
) -> dict[str, Made]:
    """By recipe."""
    if subject.ready:
        return {"as-shipped": (subject.model, tersify.pack(subject.model))}
    made = {
        recipe: compressed(subject, recipe, None)
        for recipe in READY
        if recipe in recipes
    }
    if ALLOCATED in recipes:
        try:
            made[ALLOCATED] = allocated(subject)
        except ValueError as error:  # for instance a dense embedding above the budget
            print(f"{name:18} {ALLOCATED}: missing: {error}")
    for recipe, training in subject.trained.items():
        if f"{recipe}-trained" not in recipes:
            continue
        kept = folder / f"{name}-{recipe}-{training.steps}.terse"
        if not kept.is_file():
            tersify.save(compressed(subject, recipe, training)[1], kept)
        stored = tersify.open(kept).read()
        model = tersify.load(kept, into=copy.deepcopy(subject.model))
        made[f"{recipe}-trained"] = (model.eval(), stored)
    return made


def measure(
    name: str, subject: Subject, folder: Path, figures: dict[str, float], options: Any
) -> None:
    """Quality, bytes and times; with halves that are exchanged, the quality is that on
    all inputs, and the bytes those of the larger file.
    """
    halves = [subject] if subject.turned is None else [subject, subject.turned()]
    labels = [half.held_labels for half in halves if half.held_labels is not None]

    def quality(given: Sequence[Tensor]) -> float:
        known = torch.cat(labels) if labels else None
        return subject.measure(torch.cat([*given]), torch.cat(fp32), known)

    if not options.no_quality:
        fp32 = [outputs(half.model, half.held) for half in halves]
        figures[f"{name}.fp32.quality"] = quality(fp32)
    figures[f"{name}.fp32.bytes"] = sum(
        t.numel() * t.element_size() for t in subject.model.state_dict().values()
    )
    x = subject.held[:1].contiguous()
    shown = [each[None].numpy() for each in subject.shown[:16]]
    works, missing = (
        ({}, {})
        if options.no_speed
        else engines.peers(
            subject.model,
            x,
            int8=subject.int8,
            shown=shown,
            without=options.without,
        )
    )
    every = [variants(name, half, folder, options.recipes) for half in halves]
    for recipe, (_, packed) in every[0].items():
        key = f"{name}.{recipe}"
        both = [made[recipe] for made in every]
        if not options.no_quality:
            given = [
                outputs(m, half.held) for (m, _), half in zip(both, halves, strict=True)
            ]
            figures[f"{key}.quality"] = quality(given)
            figures[f"{key}.bytes"] = max(
                tersify.save(each, folder / "zoo.terse", floats="as-is")
                for _, each in both
            )
            figures |= {
                f"{key}.{coder}_bytes": size
                for coder, size in coded_sizes(packed, quick=options.quick).items()
            }
        for precision in ("fp32", "int8"):
            ours = f"{recipe}.tersify" + ("" if precision == "fp32" else "-int8")
            try:
                fast = [
                    tersify.compile(
                        m,
                        x,
                        precision=precision,
                        threads=1,
                        calibration=half.shown[:16],
                    )
                    for (m, _), half in zip(both, halves, strict=True)
                ]
                works[ours] = lambda run=fast[0]: run(x)
                if precision == "int8" and not options.no_quality:
                    figures[f"{key}.int8_quality"] = quality(
                        [
                            outputs(run, half.held)
                            for run, half in zip(fast, halves, strict=True)
                        ]
                    )
            except ValueError as error:
                missing[ours] = str(error)[:120]
    if not options.no_speed:
        figures.update(timed(name, works, quick=options.quick))
    for engine, why in missing.items():
        print(f"{name:18} {engine}: missing: {why}")


def timed(
    name: str, works: dict[str, engines.Work], *, quick: bool
) -> dict[str, float]:
    with torch.no_grad():
        once = min(
            interleaved({n: w}, rounds=1, repeats=1, warm=1, clock=time.process_time)[
                n
            ][0]
            for n, w in works.items()
        )
        repeats = 1 if quick else max(1, round(SHORTEST_MS / max(once, 0.01)))
        rounds = 3 if quick else ROUNDS
        times = interleaved(
            works, rounds=rounds, repeats=repeats, warm=WARM, clock=time.process_time
        )
    return {
        f"{name}.{engine}_ms": statistics.median(each) for engine, each in times.items()
    }


def show(name: str, figures: dict[str, float]) -> None:
    for key, value in figures.items():
        if key.startswith(f"{name}."):
            print(f"{key:58} {value:14,.3f}")


def earlier(path: Path | None) -> tuple[dict[str, float], dict[str, str]]:
    """Figures of the networks that were measured before, and the commit of each."""
    if path is None or not path.is_file():
        return {}, {}
    found = json.loads(path.read_text())
    return found["figures"], found["machine"]["commits"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tenth of the inputs and steps, three rounds",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=ENTRIES, default=list(ENTRIES))
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument(
        "--data", type=Path, default=DATA, help="the folder of development data"
    )
    parser.add_argument(
        "--cifar",
        type=Path,
        default=Path("data"),
        help="the folder that holds CIFAR-10",
    )
    parser.add_argument("--files", type=Path, help="where trained networks are kept")
    parser.add_argument(
        "--without",
        nargs="+",
        default=[],
        help="engines to leave out, such as torch.compile",
    )
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument(
        "--no-speed",
        action="store_true",
        help="quality and bytes alone; times of an earlier run stay",
    )
    parts.add_argument(
        "--no-quality",
        action="store_true",
        help="times alone; quality and bytes of an earlier run stay",
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    own_warnings_alone()
    figures, commits = earlier(options.json)
    places = Places(data=options.data, cifar=options.cifar, quick=options.quick)
    with tempfile.TemporaryDirectory() as name:
        folder = options.files or Path(name)
        for network in options.only:
            subject = ENTRIES[network](places)
            if subject is None:
                print(f"{network}: its package or its data is not here")
                continue
            figures = {
                key: value
                for key, value in figures.items()
                if not key.startswith(f"{network}.") or stays(key, options)
            }
            measure(network, subject, folder, figures, options)
            show(network, figures)
            here = commit(Path(__file__).parent)
            if not options.no_quality:
                commits[network] = here
            if not options.no_speed:
                commits[f"{network}, times"] = here
            save(figures, commits, options.json)


def stays(key: str, options: Any) -> bool:
    """Whether a figure of an earlier run is not measured in this one."""
    other_recipe = any(
        f".{recipe}." in key for recipe in RECIPES if recipe not in options.recipes
    )
    is_time = key.endswith("_ms")
    return other_recipe or (options.no_speed if is_time else options.no_quality)


def save(figures: dict[str, float], commits: dict[str, str], path: Path | None) -> None:
    versions = {
        "torch": torch.__version__,
        "zstandard": zstandard.__version__,
        **peer_versions(),
    }
    report(
        "zoo", figures, json_path=path, versions=versions, threads=1, commits=commits
    )


if __name__ == "__main__":
    main()
