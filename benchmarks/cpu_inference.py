"""Compiled networks against other CPU engines: rounds of turns, each engine in a process of its own.

usage: python benchmarks/cpu_inference.py [--quick] [--json FILE] [--rounds N] [--seconds S] [--zeros PERCENT ...]

DeepSparse needs an environment of its own (Python ≤ 3.11, numpy < 2, an old onnx): name its interpreter in
TERSIFY_DEEPSPARSE_PYTHON. An engine that is not there is printed as missing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
from pathlib import Path

import torch
from common import report  # first: it sets what must stand before torch is imported
from torch import nn

from tersify.lab import network
from tersify.runtime import BenchRow, bench, compile, speedup

DENSE_FP32 = ("torch", "torch.compile", "onnxruntime", "openvino")
INT8 = ("onnxruntime-int8", "openvino-int8")
OURS = ("tersify", "tersify-int8")
LINEAR_FEW_BITS = ("torch-int8", "onnxruntime-int8", "onnxruntime-int4", "openvino-int8")


def sparse_star(zeros: float, *, ternary: bool) -> nn.Module:
    """ResNet-20* with that share of zeros, its weights ternary or plain, its norms fitted to noise."""
    torch.manual_seed(0)
    model = network("resnet20-star")
    for parameter in model.parameters():
        if parameter.ndim > 1:
            kept = torch.rand_like(parameter) >= zeros
            parameter.data = (parameter.data.sign() if ternary else parameter.data) * kept
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
    print(f"{'engine':18}{'batch':>6}{'threads':>8}{'median ms':>11}{'spread':>9}{'best':>9}{'cpu ms':>9}{'error':>10}")
    for row in rows:
        head = f"{row.peer:18}{row.batch:6}{row.threads:8}"
        if row.missing:
            print(f"{head}   missing: {row.missing[:80]}")
            continue
        error = f"{errors[row.peer]:10.1e}" if row.peer in errors else ""
        print(f"{head}{row.median_ms:11.3f}{row.spread_ms:9.3f}{row.best_ms:9.3f}{min(row.cpu_times):9.3f}{error}")


def ratios(rows: list[BenchRow], ours: str, peers: tuple[str, ...]) -> dict[int, tuple[str, float, float, float]]:
    """By batch: the fastest of the peers, and how many times it takes: by medians, by best, by CPU time."""
    found = {}
    for batch in sorted({row.batch for row in rows}):
        there = {row.peer: row for row in rows if row.batch == batch and not row.missing}
        others = [there[p] for p in peers if p in there]
        if ours in there and others:
            own, best = there[ours], min(others, key=lambda row: row.median_ms)
            cpu = min(best.cpu_times) / min(own.cpu_times)
            found[batch] = (best.peer, speedup(own, best), min(o.best_ms for o in others) / own.best_ms, cpu)
    return found


def measure(
    title: str,
    key: str,
    model: nn.Module,
    example: torch.Tensor,
    contests: dict[str, tuple[str, tuple[str, ...]]],
    figures: dict[str, float],
    **options: object,
) -> None:
    errors: dict[str, float] = {}
    rows = bench(model, example, errors=errors, **options)  # type: ignore[arg-type]
    show(title, rows, errors)
    for row in rows:
        if not row.missing:
            name = f"{key}.b{row.batch}.t{row.threads}.{row.peer}"
            figures[f"{name}.median_ms"] = row.median_ms
            figures[f"{name}.spread_ms"] = row.spread_ms
            figures[f"{name}.best_ms"] = row.best_ms
            figures[f"{name}.cpu_ms"] = min(row.cpu_times)
    figures.update({f"{key}.{peer}.error": error for peer, error in errors.items()})
    for contest, (ours, peers) in contests.items():
        for batch, (peer, ratio, best, cpu) in ratios(rows, ours, peers).items():
            print(
                f"  {ours} against {contest} at batch {batch}: {ratio:.2f}× {peer} (best {best:.2f}×, CPU {cpu:.2f}×)"
            )
            figures[f"{key}.b{batch}.t{rows[0].threads}.{ours}.against.{contest}"] = ratio
            figures[f"{key}.b{batch}.t{rows[0].threads}.{ours}.against.{contest}.best"] = best
            figures[f"{key}.b{batch}.t{rows[0].threads}.{ours}.against.{contest}.cpu"] = cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="90 % zeros, two threads, few rounds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--zeros", type=int, nargs="+", default=[90, 50, 75, 95], help="percent, of ResNet-20*")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (3 if arguments.quick else 9)
    figures: dict[str, float] = {}
    timing = {"rounds": rounds, "seconds": arguments.seconds}
    images = torch.randn(16, 3, 32, 32)
    contests = {
        "fp32": ("tersify", DENSE_FP32),
        "deepsparse": ("tersify", ("deepsparse",)),
        "int8": ("tersify-int8", INT8),
    }
    everyone = (*DENSE_FP32, "deepsparse", *INT8, *OURS)
    for threads in (2,) if arguments.quick else (2, 1):
        for percent in (90,) if arguments.quick else arguments.zeros:
            model = sparse_star(percent / 100, ternary=True)
            title = f"ternary ResNet-20*, {percent} % zeros, {threads} threads"
            key = f"ternary.z{percent}"
            measure(title, key, model, images, contests, figures, peers=everyone, threads=threads, **timing)
    pruned = sparse_star(0.9, ternary=False)
    measure(
        "pruned ResNet-20*, 90 % zeros, 2 threads",
        "pruned.z90",
        pruned,
        images,
        {"fp32": ("tersify", DENSE_FP32)},
        figures,
        peers=(*DENSE_FP32, "tersify"),
        threads=2,
        **timing,
    )
    # A third of zeros is what ternary training alone gives; the kernel reads every trit, so zeros change little.
    # One layer's int8 weights (16 MB) lie in a large last-level cache; those of eight layers do not, as in a network.
    for zeros, threads, layers in ((1 / 3, 2, 1), (1 / 3, 2, 8), (0.9, 2, 1), (1 / 3, 1, 1)):
        if arguments.quick and (zeros, threads, layers) != (1 / 3, 2, 1):
            continue
        measure(
            f"{layers} × ternary Linear 4096×4096, {100 * zeros:.0f} % zeros, {threads} threads",
            f"linear4096{'' if layers == 1 else f'x{layers}'}.z{100 * zeros:.0f}",
            ternary_linear(4096, zeros, layers),
            torch.randn(4, 4096),
            {
                "torch": ("tersify", ("torch",)),
                "few-bits": ("tersify", LINEAR_FEW_BITS),
                "torch-with-int8": ("tersify-int8", ("torch",)),
                "few-bits-with-int8": ("tersify-int8", LINEAR_FEW_BITS),
            },
            figures,
            peers=("torch", *LINEAR_FEW_BITS, *OURS),
            batches=(1,),
            threads=threads,
            **timing,
        )
    model = sparse_star(0.9, ternary=True)
    start = time.perf_counter()
    fast = compile(model, images[:1], threads=2)
    figures["compile_seconds"] = time.perf_counter() - start
    fast(images[:1])
    figures["weight_share"] = fast.weight_bytes() / sum(4 * p.numel() for p in model.parameters() if p.ndim > 1)
    share = 1 / figures["weight_share"]
    print(f"\ncompile {figures['compile_seconds']:.2f} s; packed weights 1/{share:.1f} of dense fp32")
    names = ("torch", "onnxruntime", "openvino", "nncf")
    versions = {n: v for n in names if (v := _version(n))}
    report("cpu_inference", figures, json_path=arguments.json, versions=versions, rounds=rounds)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
