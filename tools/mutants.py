"""Plants small bugs in copies of the package and counts how many of them the tests
notice.

usage: python tools/mutants.py [--only methods,session,…] [--sample N] [--seed N] [--results FILE] [--backwards]
                               [--redo-survivors]

Each mutant runs the test files that mirror its module, then the laws of its method,
until one fails. Results are kept in FILE (build/mutants.jsonl), so that a stopped run
goes on; a mutant whose file has changed since is new. The exit status is 1 where fewer
than 85 % are killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from fnmatch import fnmatch
from pathlib import Path

from mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "tersify"
LEAST_KILLED_PERCENT = 85.0
SECONDS = 240  # for one mutant's tests, after which it counts as killed: it hangs
GROUPS = {
    "methods": ("methods/*.py", "methods/*/*.py", "schedules.py"),
    "session": ("session/*.py", "recipe/*.py", "sites.py", "calibration.py"),
    "codec": ("codec/*.py",),
    "runtime": ("runtime/*.py",),
    "trainer": ("lab/trainer/*.py",),
}
# The first pattern that fits a module says which tests mirror it.
MIRRORS = (
    (
        "methods/energy/*",
        "tests/methods/test_settings.py tests/methods/test_energy*.py",
    ),
    (
        "methods/pruning/*",
        "tests/methods/test_[ps]*.py tests/test_torch_masks.py tests/lab/test_sharding.py",
    ),
    ("methods/lookup/*", "tests/methods/test_settings.py tests/methods/test_lookup.py"),
    (
        "methods/kmeans.py",
        "tests/methods/test_settings.py tests/methods/test_kmeans.py",
    ),
    (
        "methods/selection.py",
        "tests/methods/test_selection.py tests/methods/test_prune_schedule.py",
    ),
    (
        "methods/layer_graph.py",
        "tests/methods/test_energy*.py tests/methods/test_prune_structures.py",
    ),
    (
        "methods/t*r*.py",
        "tests/methods/test_settings.py tests/methods/test_ternary*.py tests/methods/test_other_quantizers.py",
    ),
    (
        "methods/*",
        "tests/methods/test_settings.py tests/methods/test_other_quantizers.py tests/test_recipe.py",
    ),
    (
        "schedules.py",
        "tests/methods/test_ternary.py tests/methods/test_ternary_target.py",
    ),
    (
        "calibration.py",
        "tests/methods/test_lookup.py tests/methods/test_prune_scores.py tests/test_session.py",
    ),
    ("recipe/*", "tests/test_recipe.py tests/test_session.py"),
    ("s*.py", "tests/test_session*.py tests/test_recipe.py tests/test_torch_masks.py"),
    ("codec/*", "tests/codec/*.py tests/hostile/*.py"),
    ("runtime/*", "tests/runtime/*.py"),
    (
        "lab/trainer/distributed.py",
        "tests/lab/test_ranks.py tests/lab/test_sharding.py",
    ),
    ("lab/trainer/shards.py", "tests/lab/test_sharding.py"),
    (
        "lab/trainer/stored_networks.py",
        "tests/lab/test_trainer_stored.py tests/shrinking/test_shrunk_files.py",
    ),
    ("lab/trainer/*", "tests/lab/test_trainer_*.py"),
)
LAWS = [
    f"tests/laws/test_{law}.py"
    for law in ("prepared_weights", "pack_is_the_eval_weight", "stop_and_go_on")
]
# Modules of one method, whose laws alone are asked.
OF_ONE_METHOD = {
    **{
        name: name
        for name in (
            "binary",
            "bitnet",
            "ec2t",
            "energy",
            "kmeans",
            "lookup",
            "ternary",
            "uniform",
        )
    },
    **{name: name for name in ("trq", "ttq", "twn")},
    "pruning": "prune",
    "ternary_target": "ternary-target",
    "ternary_bound": "ternary",
}


def chosen(groups: list[str], count: int, seed: int) -> list[Mutant]:
    """A sample of all mutants of the groups, the same for the same seed and sources."""
    patterns = [pattern for group in groups for pattern in GROUPS[group]]
    files = sorted(
        p
        for p in SOURCES.rglob("*.py")
        if any(fnmatch(str(p.relative_to(SOURCES)), x) for x in patterns)
    )
    every = [
        m
        for p in files
        for m in mutants_of(str(p.relative_to(SOURCES)), p.read_text(encoding="utf-8"))
    ]
    drawn = random.Random(seed).sample(every, min(count, len(every)))
    return [mutant for mutant in drawn if not mutant.tuned]


def runs_of(mutant: Mutant) -> list[list[str]]:
    """The arguments of pytest, one list for each run: the mirrored files, then the
    laws.
    """
    words = next(
        tests for pattern, tests in MIRRORS if fnmatch(mutant.path, pattern)
    ).split()
    files = sorted(
        {
            str(p.relative_to(ROOT))
            for word in words
            for p in ROOT.glob(word)
            if "test_" in p.name
        }
    )
    runs = [sorted(files, key=lambda file: Path(mutant.path).stem not in file)]
    if mutant.path.startswith(("methods", "s")):
        module = mutant.path.split("/")[min(1, mutant.path.count("/"))].removesuffix(
            ".py"
        )
        method = OF_ONE_METHOD.get(module)
        runs.append([*LAWS, *(["-k", method] if method else [])])
    return runs


def is_killed(mutant: Mutant, package: Path) -> bool:
    """Run its tests in a child that shares the imports of this process, but none of the
    package's own.
    """
    target = package / "src" / "tersify" / mutant.path
    good = target.read_text(encoding="utf-8")
    target.write_text(mutant.source, encoding="utf-8")
    try:
        return any(_fails(arguments, package) for arguments in runs_of(mutant))
    finally:
        target.write_text(good, encoding="utf-8")


def _fails(arguments: list[str], package: Path) -> bool:
    child = os.fork()
    if child == 0:
        status = 3
        try:
            status = _tested(arguments, package)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # whatever happened: what the parent would do next is not the child's
            os._exit(status)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return _means_failure(os.waitstatus_to_exitcode(status), package)
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _means_failure(status: int, package: Path) -> bool:
    """Tests that passed, failed (1), could not be imported (2) or died (a signal);
    anything else is our own mistake.
    """
    if status > 2:
        raise RuntimeError(
            f"pytest itself ended with {status}:\n{(package / 'log.txt').read_text()[-2000:]}"
        )
    return status != 0


def _tested(arguments: list[str], package: Path) -> int:
    os.setsid()  # so that what the tests start ends with them
    log = os.open(package / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.path.insert(0, str(package / "src"))
    os.environ["PYTHONPATH"] = str(package / "src")
    os.chdir(ROOT)
    import pytest

    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *arguments]))


def _known(results: Path) -> dict[str, bool]:
    """What was found out before, the latest word on each mutant."""
    if not results.exists():
        return {}
    records = [
        json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()
    ]
    return {record["key"]: record["killed"] for record in records}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default=",".join(GROUPS), help=f"groups among {', '.join(GROUPS)}"
    )
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--results", type=Path, default=ROOT / "build" / "mutants.jsonl"
    )
    parser.add_argument(
        "--backwards",
        action="store_true",
        help="from the last one, beside another runner",
    )
    parser.add_argument(
        "--redo-survivors",
        action="store_true",
        help="run those again that lived, against new tests",
    )
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - GROUPS.keys():
        parser.error(
            f"no group {', '.join(sorted(unknown))}; known: {', '.join(GROUPS)}"
        )
    mutants = chosen(args.only.split(","), args.sample, args.seed)
    args.results.parent.mkdir(parents=True, exist_ok=True)
    lived = (
        {key for key, killed in _known(args.results).items() if not killed}
        if args.redo_survivors
        else set()
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import pytest  # noqa: F401  (loaded once, for every child)
    import torch  # noqa: F401

    with (
        tempfile.TemporaryDirectory() as folder,
        args.results.open("a", encoding="utf-8") as file,
    ):
        package = Path(folder)
        shutil.copytree(
            SOURCES,
            package / "src" / "tersify",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        # what the package finds beside its sources
        for beside in ("recipes", "examples", "pyproject.toml"):
            (package / beside).symlink_to(ROOT / beside)
        if _fails(["tests/test_recipe.py"], package):
            raise RuntimeError(
                f"the tests fail without any mutant:\n{(package / 'log.txt').read_text()[-2000:]}"
            )
        for index, mutant in list(enumerate(mutants, 1))[
            :: -1 if args.backwards else 1
        ]:
            known = _known(args.results)  # which another runner may have added to
            if mutant.key not in known or (
                mutant.key in lived and not known[mutant.key]
            ):
                known[mutant.key] = is_killed(mutant, package)
                print(
                    json.dumps({"key": mutant.key, "killed": known[mutant.key]}),
                    file=file,
                    flush=True,
                )
            what = f"{mutant.path}:{mutant.line}  {mutant.before!r} → {mutant.after!r}"
            print(
                f"{index:4d}/{len(mutants)} {'killed  ' if known[mutant.key] else 'SURVIVED'} {what}",
                flush=True,
            )
    known = _known(args.results)
    killed = sum(known[mutant.key] for mutant in mutants)
    percent = 100.0 * killed / max(len(mutants), 1)
    print(f"{killed} of {len(mutants)} mutants killed: {percent:.1f} %")
    return 0 if percent >= LEAST_KILLED_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
