"""Every ready recipe with its default settings, beside its dense twin, in several
seeds.

    python benchmarks/recipes.py --json results/recipes.json
    python benchmarks/recipes.py --data cifar10 --epochs 10 --device cuda --seeds 0 --json results/recipes-cifar10.json

Each run is `tersify compress TARGET --data DATA --recipe R`. Recipes of one seed start
from the same dense twin, which is trained once; its time counts for each of them.
Seconds are those of the CPU, so that a neighbour does not count. `--smoke` shows the
path in a minute: few recipes, images and epochs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

from common import report

TARGETS = {
    "digits": "digits-cnn",
    "cifar10": "resnet20",
    "cifar100": "resnet20",
    "mnist": "digits-cnn",
}
SMOKE_RECIPES = ("ternary-target", "agp-90", "lut-4")
# Points below the dense twin that a run may end: on the digits, with defaults, and
# elsewhere after ten epochs.
MOST_LOSS = {"digits": 1.5}
MOST_LOSS_OF_FEW_BITS = {"digits": 2.5}
MOST_LOSS_ELSEWHERE = 4.0
FEW_BITS = ("binary", "lut-3", "ternary-best")  # ternary-best has more than 90 % zeros
MOST_SECONDS = {"digits": 60.0}


def allowed_loss(data: str, recipe: str) -> float:
    table = MOST_LOSS_OF_FEW_BITS if recipe in FEW_BITS else MOST_LOSS
    return table.get(data, MOST_LOSS_ELSEWHERE)


class Bench:
    def __init__(self, args: argparse.Namespace, home: Path) -> None:
        from tersify.lab.data import dataset

        self.args, self.home = args, home
        self.target = args.target or TARGETS[args.data]
        self.data = dataset(args.data, root=args.data_root)
        if args.subset:
            train, test = self.data.train[: args.subset], self.data.test[: args.subset]
            self.data = replace(self.data, train=train, test=test)
        self.twin_seconds: dict[str, float] = {}

    def run(self, recipe: str, seed: int) -> dict[str, float]:
        """One run as the command line makes it, from a dense twin that another recipe
        may have trained.
        """
        from tersify.lab.trainer import Job, fitted, run_with_twin
        from tersify.lab.trainer.dense_twin import dense_twin
        from tersify.lab.trainer.run_directory import TWIN
        from tersify.recipe import Recipe

        chosen = Recipe.load(recipe)
        samples = len(self.data.train)
        config = fitted(
            chosen.train,
            samples,
            epochs=self.args.epochs,
            seed=seed,
            device=self.args.device,
        )
        job = Job(
            target=self.target,
            data=self.args.data,
            config=config,
            recipe=chosen,
            data_root=self.args.data_root,
        )
        twin = dense_twin(job, self.data)
        key = json.dumps(twin.config.to_dict(), sort_keys=True)
        kept = self.home / f"twin-{len(self.twin_seconds)}"
        if key not in self.twin_seconds:
            start = time.process_time()
            twin.run(kept, data=self.data)
            self.twin_seconds[key] = time.process_time() - start
        kept = self.home / f"twin-{list(self.twin_seconds).index(key)}"
        out = self.home / f"{recipe}-{seed}"
        shutil.copytree(kept, out / TWIN)
        start = time.process_time()
        rows = run_with_twin(job, out, data=self.data, label=recipe, resume=True)
        metrics = rows[recipe] | {
            "seconds": self.twin_seconds[key] + time.process_time() - start
        }
        shutil.rmtree(out)
        return metrics


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits", choices=sorted(TARGETS))
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument(
        "--target", default=None, help="the network; one that fits the data by default"
    )
    parser.add_argument("--recipes", nargs="+", default=None, help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--epochs", type=int, default=None, help="as many as fit the data by default"
    )
    parser.add_argument(
        "--subset", type=int, default=None, help="only so many images of each split"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--smoke", "--quick", action="store_true", dest="smoke")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()

    import torch

    from tersify.recipe import ready_recipes

    names = args.recipes or [path.stem for path in ready_recipes()]
    if args.smoke:
        names, args.seeds = args.recipes or list(SMOKE_RECIPES), args.seeds[:1]
        args.epochs, args.subset = 2, 512
    # lut-4-paper clamps, as it says
    warnings.filterwarnings("ignore", message=".*lie beyond the table's format.*")
    figures: dict[str, float] = {}
    failed = []
    print(
        f"{'recipe':<20}{'dense':>8}{'ours':>8}{'worst':>8}{'limit':>8}{'zeros %':>9}{'bytes':>9}{'seconds':>9}"
    )
    with tempfile.TemporaryDirectory(prefix="tersify-recipes-") as home:
        bench = Bench(args, Path(home))
        for name in names:
            runs = [bench.run(name, seed) for seed in args.seeds]
            losses = [run["dense_accuracy"] - run["accuracy"] for run in runs]
            limit = allowed_loss(args.data, name)
            own = {
                metric: statistics.fmean(run[metric] for run in runs)
                for metric in ("dense_accuracy", "accuracy")
            }
            own |= {
                "loss_worst": max(losses),
                "loss_allowed": limit,
                "seconds_most": max(r["seconds"] for r in runs),
            }
            own |= {
                metric: statistics.fmean(r[metric] for r in runs)
                for metric in ("sparsity", "file_bytes")
            }
            own |= {
                f"accuracy_seed{seed}": run["accuracy"]
                for seed, run in zip(args.seeds, runs, strict=True)
            }
            figures |= {
                f"{args.data}.{name}.{metric}": round(value, 3)
                for metric, value in own.items()
            }
            if max(losses) > limit or own["seconds_most"] > MOST_SECONDS.get(
                args.data, float("inf")
            ):
                failed.append(name)
            print(
                f"{name:<20}{own['dense_accuracy']:>8.2f}{own['accuracy']:>8.2f}{max(losses):>8.2f}{limit:>8.1f}"
                f"{own['sparsity']:>9.1f}{own['file_bytes']:>9.0f}{own['seconds_most']:>9.1f}",
                flush=True,
            )
    if not args.smoke:
        print(f"beyond a limit: {', '.join(failed) or 'none'}")
    on_gpu = args.device.startswith("cuda")
    machine = {
        "gpu": torch.cuda.get_device_name() if on_gpu else None,
        "threads": torch.get_num_threads(),
    }
    report(
        "recipes",
        figures,
        json_path=args.json,
        versions={"torch": torch.__version__},
        target=bench.target,
        seeds=args.seeds,
        **machine,
    )


if __name__ == "__main__":
    main()
