"""Compiled networks against other CPU engines: rounds of turns, each engine in a
process of its own.

usage: python benchmarks/cpu_inference.py [--quick] [--json FILE [--resume]] [--rounds N] [--seconds S]
       [--zeros PERCENT ...] [--threads N ...] [--only NAME ...]

The file is written after every section; --resume goes on with the sections that it
lacks, if it comes from the same commit; --only measures the sections whose names begin
so, such as linear4096 or ternary.z90.t2. DeepSparse needs an environment of its own
(Python ≤ 3.11, numpy < 2, an old onnx): name its interpreter in
TERSIFY_DEEPSPARSE_PYTHON; that of llama-cpp-python, where it lies elsewhere, in
TERSIFY_LLAMA_PYTHON. An engine that is not there is printed as missing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

# first: it sets what must stand before torch is imported
from common import ONEDNN_GUARD, ONEDNN_ISA, report
from torch import nn

from tersify.lab import network
from tersify.lab.experiments.provenance import commit
from tersify.runtime import BenchRow, bench, compile, speedup

# OpenVINO held to f32
DENSE_FP32 = ("torch", "torch.compile", "onnxruntime", "openvino")
DENSE = (*DENSE_FP32, "openvino-default")  # which may take bf16
INT8 = ("onnxruntime-int8", "openvino-int8")
OURS = ("tersify", "tersify-fp16", "tersify-int8")
# Each with what suits ternary weights best: ONNX Runtime in blocks of 256, llama.cpp
# with its ternary type.
LINEAR_FEW_BITS = (
    "torch-int8",
    "onnxruntime-int8",
    "onnxruntime-int4",
    "onnxruntime-int2",
    "openvino-int8",
    "llama.cpp-tq2",
)
# Products and convolutions for which oneDNN takes AMX where it finds it.
ONEDNN_TRIAL = """
import torch

x, images = torch.randn(64, 256), torch.randn(2, 64, 16, 16)
layer, conv = torch.nn.Linear(256, 256), torch.nn.Conv2d(64, 64, 3)
torch.backends.quantized.engine = "onednn"
small = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(layer), {torch.nn.Linear})
with torch.no_grad():
    pairs = [(layer(x), small(x)), (layer(x), layer.bfloat16()(x.bfloat16()))]
    pairs += [(conv(images), conv.bfloat16()(images.bfloat16()))]
assert all((a - b).abs().max() < 0.1 * a.abs().max() for a, b in pairs)
"""
SINGLE_BATCH, BATCHES = (1,), (1, 8, 64)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A network, its peers and who is compared with whom: {contest: (ours, theirs)}."""

    title: str
    key: str
    threads: int
    model: Callable[[], nn.Module]
    example: torch.Tensor
    contests: Mapping[str, tuple[str, tuple[str, ...]]]
    batches: tuple[int, ...] = BATCHES
    times_the_rounds: int = 1

    @property
    def name(self) -> str:
        return f"{self.key}.t{self.threads}"

    @property
    def peers(self) -> tuple[str, ...]:
        everyone = [
            peer for ours, theirs in self.contests.values() for peer in (*theirs, ours)
        ]
        return tuple(
            sorted(set(everyone), key=lambda peer: (peer in OURS, everyone.index(peer)))
        )


def sparse_star(zeros: float, *, ternary: bool) -> nn.Module:
    """ResNet-20* with that fraction of zeros, its weights ternary or plain, its norms
    fitted to noise.
    """
    torch.manual_seed(0)
    model = network("resnet20-star")
    for parameter in model.parameters():
        if parameter.ndim > 1:
            kept = torch.rand_like(parameter) >= zeros
            parameter.data = (
                parameter.data.sign() if ternary else parameter.data
            ) * kept
    model.train()
    with torch.no_grad():
        for _ in range(10):
            model(torch.randn(32, 3, 32, 32))
    return model.eval()


def ternary_linear(size: int, zeros: float, layers: int = 1) -> nn.Module:
    """Linear layers one behind the other, scaled so that activations keep their size."""
    torch.manual_seed(0)
    stack = [nn.Linear(size, size, bias=False) for _ in range(layers)]
    for layer in stack:
        pattern = layer.weight.data.sign() * (torch.rand_like(layer.weight) >= zeros)
        layer.weight.data = pattern * (size * (1 - zeros)) ** -0.5
    return nn.Sequential(*stack).eval() if layers > 1 else stack[0].eval()


def show(title: str, rows: list[BenchRow], errors: dict[str, float]) -> None:
    print(f"\n{title}")
    print(
        f"{'engine':18}{'batch':>6}{'threads':>8}{'median ms':>11}{'spread':>9}{'best':>9}{'cpu ms':>9}{'error':>10}"
    )
    for row in rows:
        head = f"{row.peer:18}{row.batch:6}{row.threads:8}"
        if row.missing:
            print(f"{head}   missing: {row.missing[:80]}")
            continue
        error = f"{errors[row.peer]:10.1e}" if row.peer in errors else ""
        print(
            f"{head}{row.median_ms:11.3f}{row.spread_ms:9.3f}{row.best_ms:9.3f}{row.cpu_ms:9.3f}{error}"
        )


def ratios(
    rows: list[BenchRow], ours: str, peers: tuple[str, ...]
) -> dict[int, tuple[str, float, float, float]]:
    """By batch: the fastest of the peers, and how many times it takes: by medians, by
    best, by CPU time.
    """
    found = {}
    for batch in sorted({row.batch for row in rows}):
        there = {
            row.peer: row for row in rows if row.batch == batch and not row.missing
        }
        others = [there[p] for p in peers if p in there]
        if ours in there and others:
            own, best = there[ours], min(others, key=lambda row: row.median_ms)
            least = min(other.best_ms for other in others)
            found[batch] = (
                best.peer,
                speedup(own, best),
                least / own.best_ms,
                best.cpu_ms / own.cpu_ms,
            )
    return found


def measure(
    section: Section, figures: dict[str, float], *, rounds: int, seconds: float
) -> None:
    errors: dict[str, float] = {}
    key, threads = section.key, section.threads
    rows = bench(
        section.model(),
        section.example,
        peers=section.peers,
        batches=section.batches,
        threads=threads,
        rounds=rounds,
        seconds=seconds,
        errors=errors,
    )
    show(section.title, rows, errors)
    for row in rows:
        if not row.missing:
            name = f"{key}.b{row.batch}.t{threads}.{row.peer}"
            figures[f"{name}.median_ms"] = row.median_ms
            figures[f"{name}.spread_ms"] = row.spread_ms
            figures[f"{name}.best_ms"] = row.best_ms
            figures[f"{name}.cpu_ms"] = row.cpu_ms
    figures.update({f"{key}.{peer}.error": error for peer, error in errors.items()})
    for contest, (ours, peers) in section.contests.items():
        for batch, (peer, ratio, best, cpu) in ratios(rows, ours, peers).items():
            print(
                f"  {ours} against {contest} at batch {batch}: {ratio:.2f}× {peer} (best {best:.2f}×, CPU {cpu:.2f}×)"
            )
            figures[f"{key}.b{batch}.t{threads}.{ours}.against.{contest}"] = ratio
            figures[f"{key}.b{batch}.t{threads}.{ours}.against.{contest}.best"] = best
            figures[f"{key}.b{batch}.t{threads}.{ours}.against.{contest}.cpu"] = cpu
        others = [errors[peer] for peer in peers if peer in errors]
        if contest == "int8" and ours in errors and others:
            fraction = errors[ours] / min(others)
            print(
                f"  {ours}'s largest error is {fraction:.2f} of the most exact int8 peer's"
            )
            figures[f"{key}.{ours}.error_share"] = fraction


def sections(zeros: list[int], threads: list[int]) -> Iterator[Section]:
    images, vectors = torch.randn(16, 3, 32, 32), torch.randn(4, 4096)
    fp32 = {"fp32": ("tersify", DENSE_FP32)}
    all_engines = {
        **fp32,
        "dense": ("tersify", DENSE),
        "deepsparse": ("tersify", ("deepsparse",)),
        "int8": ("tersify-int8", INT8),
        "fp32-with-fp16": ("tersify-fp16", DENSE_FP32),
        "int8-with-fp16": ("tersify-fp16", INT8),
    }
    for count in threads:
        for percent in zeros:
            yield Section(
                title=f"ternary ResNet-20*, {percent} % zeros, {count} threads",
                key=f"ternary.z{percent}",
                threads=count,
                model=lambda percent=percent: sparse_star(percent / 100, ternary=True),  # type: ignore[misc]
                example=images,
                contests=all_engines,
            )
    yield Section(
        title="pruned ResNet-20*, 90 % zeros, 2 threads",
        key="pruned.z90",
        threads=2,
        model=lambda: sparse_star(0.9, ternary=False),
        example=images,
        contests=fp32,
    )
    # A third of zeros is what ternary training alone gives; the kernel reads every
    # trit, so zeros change little. One layer's int8 weights (16 MB) lie in a large
    # last-level cache; those of eight layers do not, as in a network.
    for fraction, count, layers in (
        (1 / 3, 2, 1),
        (1 / 3, 2, 8),
        (0.9, 2, 1),
        (1 / 3, 1, 1),
    ):
        yield Section(
            title=f"{layers} × ternary Linear 4096×4096, {100 * fraction:.0f} % zeros, {count} threads",
            key=f"linear4096{'' if layers == 1 else f'x{layers}'}.z{100 * fraction:.0f}",
            threads=count,
            model=lambda fraction=fraction, layers=layers: ternary_linear(
                4096, fraction, layers
            ),  # type: ignore[misc]
            example=vectors,
            contests={
                "torch": ("tersify", ("torch",)),
                "few-bits": ("tersify", LINEAR_FEW_BITS),
                "torch-with-int8": ("tersify-int8", ("torch",)),
                "few-bits-with-int8": ("tersify-int8", LINEAR_FEW_BITS),
            },
            batches=SINGLE_BATCH,
            # microseconds: neighbours disturb many rounds, and one takes little time
            times_the_rounds=5,
        )


def onednn_isa() -> str:
    """What oneDNN, in torch and OpenVINO, may use: what the caller has set, else all
    that works here in a trial.
    """
    if ONEDNN_GUARD is None:
        return os.environ[ONEDNN_ISA]
    everything = {**os.environ, ONEDNN_ISA: "DEFAULT"}
    trial = subprocess.run(
        [sys.executable, "-c", ONEDNN_TRIAL],
        env=everything,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return "DEFAULT" if trial.returncode == 0 else ONEDNN_GUARD


def compile_facts(figures: dict[str, float]) -> None:
    model, image = sparse_star(0.9, ternary=True), torch.randn(1, 3, 32, 32)
    start = time.perf_counter()
    fast = compile(model, image, threads=2)
    figures["compile_seconds"] = time.perf_counter() - start
    fast(image)
    figures["weight_share"] = fast.weight_bytes() / sum(
        4 * p.numel() for p in model.parameters() if p.ndim > 1
    )
    fraction = 1 / figures["weight_share"]
    print(
        f"\ncompile {figures['compile_seconds']:.2f} s; packed weights 1/{fraction:.1f} of dense fp32"
    )


def earlier(path: Path | None) -> tuple[dict[str, float], list[str]]:
    """The figures of an unfinished run of this commit, and the sections they come from."""
    if path is None or not path.exists():
        return {}, []
    found = json.loads(path.read_text())
    here = commit(Path(__file__).parent)
    changed = "+changes"  # which the file itself may be
    if found["commit"].removesuffix(changed) != here.removesuffix(changed):
        raise ValueError(
            f"{path} is of commit {found['commit']}, this is {here}; measure again without --resume"
        )
    return found["figures"], found["machine"]["sections"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="90 %% zeros, two threads, few rounds"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--resume", action="store_true", help="keep the sections that the JSON file has"
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument(
        "--zeros",
        type=int,
        nargs="+",
        default=[90, 50, 75, 95],
        help="percent, of ResNet-20*",
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[2, 1], help="of ResNet-20*"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        metavar="NAME",
        help="sections whose names begin so",
    )
    arguments = parser.parse_args()
    rounds = arguments.rounds or (3 if arguments.quick else 4)
    figures, done = earlier(arguments.json if arguments.resume else None)
    versions = {
        n: v for n in ("torch", "onnxruntime", "openvino", "nncf") if (v := _version(n))
    }

    def save() -> None:
        facts = {
            "cores_in_all": os.cpu_count(),
            ONEDNN_ISA: isa,
            "rounds": rounds_of,
            "sections": done,
        }
        report(
            "cpu_inference",
            figures,
            json_path=arguments.json,
            versions=versions,
            **facts,
        )

    quick = {"zeros": [90], "threads": [2]}
    full = {"zeros": arguments.zeros, "threads": arguments.threads}
    known = list(sections(**(quick if arguments.quick else full)))
    if arguments.quick:
        known = [
            s
            for s in known
            if s.name in ("ternary.z90.t2", "pruned.z90.t2", "linear4096.z33.t2")
        ]
    wanted = [s for s in known if s.name.startswith(tuple(arguments.only))]
    if not wanted:
        parser.error(
            f"no section's name begins with {arguments.only}; there are {[s.name for s in known]}"
        )
    rounds_of = {s.name: rounds * s.times_the_rounds for s in wanted}
    isa = os.environ[ONEDNN_ISA] = onednn_isa()
    for section in wanted:
        if section.name not in done:
            start = time.perf_counter()
            measure(
                section,
                figures,
                rounds=rounds_of[section.name],
                seconds=arguments.seconds,
            )
            print(f"  ({time.perf_counter() - start:.0f} s)", flush=True)
            done.append(section.name)
            save()
    compile_facts(figures)
    save()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
