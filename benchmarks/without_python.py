"""What a .terse file with a plan does without Python: how soon its first result is there,
whether every machine makes the same numbers, what the C source takes, how fast a browser
runs it, how many products an instruction makes, what hostile plans do.

    python benchmarks/without_python.py [--only SECTION ...] [--images N] [--json FILE]

Each section is measured by itself; figures of the others stay as the record has them.
Programs are built in build/ with cmake, for other machines where their compilers and
qemu are installed (docs/how-to/without-python.md); what is missing is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import common
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "portable"))

import browser_speed  # noqa: E402
import machine_answers  # noqa: E402
import microcontroller  # type: ignore[import-not-found]  # noqa: E402

import tersify  # noqa: E402
from tersify import codec  # noqa: E402
from tersify.export.c import export_c  # noqa: E402
from tersify.lab import dataset, network  # noqa: E402
from tersify.lab.data.types import Data, normalize  # noqa: E402
from tersify.lab.experiments.provenance import commit  # noqa: E402
from tersify.runtime.portable import Replay, lowered, read_program  # noqa: E402

FILE = ROOT / "examples" / "resnet20-star.terse"
WORK = ROOT / "build" / "without-python"
PRECISIONS = ("fp32", "int8")
STARTS = 21
CALIBRATION = 256  # training images that show the ranges, as `tersify plan` takes
CORES = ("cortex-m0", "cortex-m4", "cortex-m33")
FUZZED, FUZZED_AT_ONCE = 200_000, 10_000
Figures = dict[str, float]


def planned(data: Data) -> dict[str, Path]:
    """The example's file with a plan of each precision."""
    from dataclasses import replace

    from tersify.codec.container import Sections
    from tersify.codec.writer import add_plan

    WORK.mkdir(parents=True, exist_ok=True)
    paths = {precision: WORK / f"{precision}.terse" for precision in PRECISIONS}
    opened = codec.open(FILE)
    model = tersify.load(FILE, into=network("resnet20-star")).eval()
    seen = normalize(data.train.images[:CALIBRATION], data)
    for precision, path in paths.items():
        calibration = [seen] if precision == "int8" else None
        program = lowered(
            model,
            seen[:2],
            opened.read(),
            precision=precision,
            calibration=calibration,
        )
        named = replace(program, mean=data.mean, std=data.std, labels=data.class_names)
        add_plan(Sections(FILE), path, named.to_bytes())
    return paths


def in_python(path: Path, images: torch.Tensor) -> np.ndarray:
    file = codec.open(path)
    replay = Replay(read_program(file), file)
    return torch.cat([replay.run([part])[0] for part in images.split(50)]).numpy()


# Starts a program some times. What a process had resident counts for its children until
# they are another program, so this one imports next to nothing.
STARTER = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    begin = time.perf_counter()
    child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
    _, status, used = os.wait4(child, 0)
    wall = time.perf_counter() - begin
    print(status, wall, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def start(
    paths: dict[str, Path], images: torch.Tensor, _: argparse.Namespace
) -> Figures:
    """From the start of the process to its end, with one image, in fresh processes."""
    program = machine_answers.here()
    np.save(WORK / "one.npy", images[:1].numpy())
    figures: Figures = {"binary_bytes": program.stat().st_size}
    for precision, path in paths.items():
        given = [program, path, WORK / "one.npy", WORK / "out.npy"]
        told = subprocess.run(
            [sys.executable, "-I", "-S", "-c", STARTER, str(STARTS), *given],
            check=True,
            capture_output=True,
            text=True,
        )
        rows = [
            [float(part) for part in line.split()] for line in told.stdout.splitlines()
        ]
        status, wall, cpu, kilobytes = zip(*rows, strict=True)
        assert not any(status), status
        figures[f"start_{precision}_ms"] = 1e3 * statistics.median(wall)
        figures[f"start_{precision}_cpu_ms"] = 1e3 * statistics.median(cpu)
        figures[f"start_{precision}_resident_bytes"] = 1024 * max(kilobytes)
        figures[f"{precision}_file_bytes"] = path.stat().st_size
    return figures


def answers(
    paths: dict[str, Path], images: torch.Tensor, given: argparse.Namespace
) -> Figures:
    """Every machine against the Python runtime, on the first test images."""
    figures: Figures = {}
    for precision, path in paths.items():
        some = images[: given.images]
        wanted = in_python(path, some)
        for machine, made in machine_answers.made_by_all(
            path,
            some.numpy(),
            WORK,
            emulated=given.emulated,
            processes=given.processes,
            machines=given.machines,
        ):
            own = wanted[: len(made)]
            apart = float(np.abs(made - own).max() / np.abs(own).max())
            figures[f"{machine}_{precision}_apart"] = apart
            figures[f"{machine}_{precision}_images"] = len(made)
            figures[f"{machine}_{precision}_same_bits"] = float(
                np.array_equal(made, own)
            )
            print(f"{machine} {precision}: {len(made)} images, {apart:.2g} apart")
    return figures


def c_source(
    paths: dict[str, Path], images: torch.Tensor, given: argparse.Namespace
) -> Figures:
    """The int8 plan as C: all test images by the host's compiler, golden vectors on boards."""
    file = codec.open(paths["int8"])
    program, folder = read_program(file), WORK / "c"
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    told = export_c(program, file.read(), folder, vectors=2)
    quick = os.environ | {"CFLAGS": "-O3 -march=native"}
    subprocess.run(["make", "stream"], cwd=folder, check=True, env=quick)
    images = images[: given.c_images]
    done = subprocess.run(
        [folder / "stream"], input=images.numpy().tobytes(), capture_output=True
    )
    made = np.frombuffer(done.stdout, np.float32).reshape(len(images), -1)
    wanted = in_python(paths["int8"], images)
    labels = given.labels[: len(images)]
    figures: Figures = {
        "c_images": len(images),
        "c_accuracy": 100 * float((made.argmax(1) == labels).mean()),
        "python_int8_accuracy": 100 * float((wanted.argmax(1) == labels).mean()),
        "c_same_bits": float(np.array_equal(made, wanted)),
        "c_arena_bytes": told["arena_bytes"],
    }
    for core in CORES:
        flash, ram = microcontroller.sizes(folder, core)
        name = core.replace("-", "_")
        figures |= {f"{name}_flash_bytes": flash, f"{name}_ram_bytes": ram}
        same = microcontroller.verdict(folder, core) == "same bits"
        figures[f"{name}_same_bits"] = float(same)
        print(f"{core}: {flash} bytes of flash, {ram} of RAM, same bits: {same}")
    return figures


def hostile(*_: object) -> Figures:
    """Under AddressSanitizer and UBSan through the C border; `make fuzz-plan` builds it.
    Pieces without a report are kept, so that a run that was stopped goes on.
    """
    program = ROOT / "build" / "asan" / "csrc" / "lib" / "fuzz" / "plan_fuzz"
    script = ROOT / "tests" / "hostile" / "plan_fuzz.py"
    built = hashlib.sha256(program.read_bytes()).hexdigest()[:16]
    folder = WORK / "hostile" / built
    folder.mkdir(parents=True, exist_ok=True)
    reports = 0
    for first in range(0, FUZZED, FUZZED_AT_ONCE):
        kept = folder / f"{first}.txt"
        if not kept.is_file():
            given = [sys.executable, script, program, str(FUZZED_AT_ONCE), str(first)]
            done = subprocess.run(given, capture_output=True, text=True, check=False)
            if done.returncode:
                reports += 1
                print(done.stdout + done.stderr[-2000:])
                continue
            kept.write_text(done.stdout)
        print(f"from seed {first}: {kept.read_text()}", end="", flush=True)
    return {"hostile_plans": FUZZED, "hostile_reports": reports}


def browser(
    paths: dict[str, Path], images: torch.Tensor, _: argparse.Namespace
) -> Figures:
    return browser_speed.measured(paths, FILE, images[:1], WORK)


def counts(*_: object) -> Figures:
    return machine_answers.products_an_instruction(WORK)


SECTIONS: dict[str, Callable[..., Figures]] = {
    "start": start,
    "answers": answers,
    "c": c_source,
    "browser": browser,
    "counts": counts,
    "hostile": hostile,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--images", type=int, default=1000, help="for every machine")
    parser.add_argument("--emulated", type=int, default=1000, help="under qemu")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="of qemu at once"
    )
    parser.add_argument(
        "--machines", nargs="+", default=["x86", "wasm", *machine_answers.MACHINES]
    )
    parser.add_argument("--c-images", type=int, default=10_000, help="for the C source")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    begun_at = commit(ROOT)  # a section writes the record, which changes the tree
    torch.set_num_threads(1)
    paths: dict[str, Path] = {}
    images = torch.empty(0)
    if set(given.only) != {"counts"}:  # which asks for no network
        data = dataset("cifar10", root=ROOT / "data")
        images = normalize(data.test.images, data)
        given.labels = data.test.labels.numpy()
        paths = planned(data)
    for name in given.only:
        measured = SECTIONS[name](paths, images, given)
        for key, value in measured.items():
            print(f"{key} {value:g}")
        if given.json:
            _add(given.json, name, measured, begun_at)


def _add(path: Path, section: str, measured: Figures, begun_at: str) -> None:
    """What the record has of other sections stays, with the commands they came from."""
    held = json.loads(path.read_text()) if path.is_file() else {}
    common.report(
        "without-python",
        held.get("figures", {}) | measured,
        json_path=path,
        versions={"torch": torch.__version__},
    )
    record = json.loads(path.read_text())
    record["commit"] = begun_at
    own = {section: {"command": record.pop("command"), "commit": begun_at}}
    record["sections"] = held.get("sections", {}) | own
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
