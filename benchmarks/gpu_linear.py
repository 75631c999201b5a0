"""Linear layers from packed weights on the GPU, beside cuBLAS in bf16, torch's int4 and
gemlite.

Microseconds a layer: medians over replays of a CUDA graph that streams more weights
than the caches hold. Each of ours is tuned over a few tilings, and only one whose
result is right counts. gemlite is timed in a process of its own, which gets
`--gemlite-seconds`; 0 leaves it out. Usage: gpu_linear.py [--quick] [--smoke] [--json
FILE] [--gemlite-seconds N] `--smoke` needs no GPU: it only packs small layers and
compares the operator with float64.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from common import report
from gpu_layers import (
    Case,
    bf16_works,
    clones,
    clones_of_lists,
    error,
    expected,
    run,
    sparse_works,
    table_works,
    ternary_works,
    tinygemm_works,
)

from tersify.runtime.gpu import driver, sparse, table4, ternary
from tersify.runtime.gpu.launch import Launch
from tersify.runtime.gpu.timing import microseconds
from tersify.runtime.gpu.tuning import LIST_TILINGS, tilings

SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (6912, 2560))
FIRST = SHAPES[:2]
TOLERANCE = 2e-3  # of the largest output, in fp16
_OUT = {"ternary": 10, "table4": 10, "sparse": 8}  # which argument a launch writes


class Bench:
    def __init__(self, *, quick: bool) -> None:
        self.replays = 20 if quick else 60
        self.figures: dict[str, float] = {}

    def tuned(
        self,
        key: str,
        settings: Iterable[Any],
        works: Callable[[Any], list[list[Launch]]],
        wanted: torch.Tensor,
    ) -> None:
        """The fastest setting whose result is right; a wrong one is a figure of its
        own.
        """
        times: dict[Any, float] = {}
        apart: dict[Any, float] = {}
        for setting in settings:
            launches = works(setting)
            out = launches[0][-1].arguments[_OUT[launches[0][-1].kernel]]
            assert isinstance(out, torch.Tensor)
            try:
                for launch in launches[0]:
                    driver.run(launch, out.device)
                apart[setting] = error(out, wanted)
                if not apart[setting] <= TOLERANCE:
                    print(f"WRONG {key} {setting}: {apart[setting]:.1e}", flush=True)
                    self.figures[f"{key}_wrong"] = apart[setting]
                    continue
                times[setting] = microseconds(
                    [run(one, out) for one in launches], replays=self.replays
                )
            except RuntimeError as problem:
                print(f"FAILED {key} {setting}: {problem}", flush=True)
        if times:
            best = min(times, key=times.__getitem__)
            self.figures[f"{key}_us"] = microseconds(
                [run(one, wanted) for one in works(best)], replays=2 * self.replays
            )
            self.figures[f"{key}_error"] = apart[best]
            print(
                f"{key}: {self.figures[f'{key}_us']:.2f} us, {best}, {sorted(times.values())[:3]}",
                flush=True,
            )

    def peer(
        self,
        key: str,
        works: Callable[[Case], list[Callable[[], torch.Tensor]]],
        case: Case,
    ) -> None:
        try:
            self.figures[f"{key}_us"] = microseconds(
                works(case), replays=2 * self.replays
            )
            print(f"{key}: {self.figures[f'{key}_us']:.2f} us", flush=True)
        except Exception as problem:  # another torch may have other operators
            print(
                f"FAILED {key}: {type(problem).__name__} {str(problem)[:200]}",
                flush=True,
            )


def measured(bench: Bench, rows: int, features: int, vectors: int) -> None:
    """All of our kernels for one shape, and torch's peers."""
    case = Case(rows=rows, features=features, vectors=vectors)
    tag = f"{case.name}_batch{vectors}"
    bench.peer(f"cublas_bf16_{tag}", bf16_works, case)
    _ternary(bench, case, tag)
    torch.cuda.empty_cache()
    if (rows, features) in FIRST and vectors in (1, 16):
        bench.peer(f"torch_int4_{tag}", tinygemm_works, case)
        _table(bench, case, tag)
        torch.cuda.empty_cache()
    if vectors == 1 and (rows, features) in FIRST:
        _lists(bench, Case(rows=rows, features=features, vectors=1, zeros=0.9), tag)
        torch.cuda.empty_cache()


def _ternary(bench: Bench, case: Case, tag: str) -> None:
    signs = case.signs()
    words = clones(ternary.pack(signs))
    bench.figures[f"ternary_bits_{case.name}"] = 8 * words[0].nbytes / signs.numel()
    torch.cuda.synchronize()
    for mode in (
        ("int8", "int8 inside", "fp16")
        if case.vectors == 1
        else ("int8", "int8 rounded", "fp16")
    ):
        bench.tuned(
            f"ternary_{mode.replace(' ', '_')}_{tag}",
            tilings(case.vectors),
            partial(_with, ternary_works, case, mode, words),
            expected(case, signs, rounded=mode != "fp16"),
        )


def _table(bench: Bench, case: Case, tag: str) -> None:
    codes, levels = case.codes(), case.levels()
    packed = clones(table4.pack(codes))
    torch.cuda.synchronize()
    weight = levels.double()[codes.long()]
    step = float(levels.float().abs().max()) / 127
    for mode in (
        ("fp16", "int8", "int8 inside") if case.vectors == 1 else ("fp16", "int8")
    ):
        bench.tuned(
            f"table4_{mode.replace(' ', '_')}_{tag}",
            tilings(case.vectors),
            partial(_with, table_works, case, mode, packed),
            expected(
                case,
                weight,
                rounded=mode != "fp16",
                step=None if mode == "fp16" else step,
            ),
        )


def _lists(bench: Bench, case: Case, tag: str) -> None:
    lists = sparse.pack(case.signs())
    bench.figures[f"sparse_bits_{case.name}"] = (
        8 * (lists.data.nbytes + lists.starts.nbytes) / (case.rows * case.features)
    )
    many = clones_of_lists(lists)
    torch.cuda.synchronize()
    for mode in ("fp16", "int8 inside"):
        bench.tuned(
            f"sparse_{mode.replace(' ', '_')}_{tag}",
            LIST_TILINGS,
            lambda setting, mode=mode: sparse_works(case, mode, *setting, many),
            expected(case, case.signs(), rounded=mode != "fp16"),
        )


def _with(
    make: Callable[..., list[list[Launch]]],
    case: Case,
    mode: str,
    packed: Any,
    tiling: Any,
) -> list[list[Launch]]:
    return make(case, mode, tiling, packed)


def gemlite(seconds: int) -> dict[str, Any]:
    """What gpu_peers.py has measured when its time is over."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gemlite.json"
        try:
            subprocess.run(
                [
                    sys.executable,
                    str(Path(__file__).parent / "gpu_peers.py"),
                    str(path),
                ],
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            print("gemlite: no more time", flush=True)
        return (
            json.loads(path.read_text())
            if path.exists()
            else {"figures": {}, "version": "missing"}
        )


def ratios(figures: dict[str, float]) -> dict[str, float]:
    """How many times as fast as the peers: what the table in docs/explanation/gpu.md
    shows.
    """
    made = {}
    for key, value in figures.items():
        name = key.removesuffix("_us")
        if key.endswith("_us") and name.startswith(("ternary", "table4", "sparse")):
            tag = "_".join(name.rsplit("_", 2)[-2:])
            for peer in (
                "cublas_bf16",
                "torch_int4",
                *(f"gemlite_{m}" for m in ("A16W158", "A8W158", "A16W2", "A16W4")),
            ):
                if f"{peer}_{tag}_us" in figures:
                    made[f"{name}_over_{peer}"] = figures[f"{peer}_{tag}_us"] / value
    return made


def smoke() -> None:
    from tersify.runtime.gpu.operator import reference
    from tersify.runtime.gpu.packed import TABLE, TERNARY, pack
    from tersify.runtime.weights import classified_by_torch

    g = torch.Generator().manual_seed(0)
    for form, levels in ((TERNARY, [-1.0, 0.0, 1.0]), (TABLE, [-2.0, -1.0, 0.0, 0.5])):
        dense = torch.tensor(levels)[
            torch.randint(0, len(levels), (40, 200), generator=g)
        ]
        weight = classified_by_torch(dense)
        assert weight is not None
        x = torch.randn(3, 200, generator=g)
        made = reference(x, pack(weight, form), None, "bf16 parts")
        print(form, "error", error(made, x.double() @ dense.double().T))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gemlite-seconds", type=int, default=150)
    args = parser.parse_args()
    if args.smoke:
        smoke()
        return
    bench = Bench(quick=args.quick)
    versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}

    def save() -> None:
        report(
            "gpu-linear",
            {
                k: round(v, 7)
                for k, v in (bench.figures | ratios(bench.figures)).items()
            },
            json_path=args.json,
            versions=versions,
            gpus=[torch.cuda.get_device_name()],
        )

    cases = [(*shape, 1) for shape in SHAPES] + [
        (*FIRST[1], vectors) for vectors in (16, 8, 32)
    ]
    for rows, features, vectors in cases[: 2 if args.quick else None]:
        start = time.time()
        measured(bench, rows, features, vectors)
        print(
            f"-- {rows}x{features}, {vectors}: {time.time() - start:.1f} s", flush=True
        )
        save()
    if args.gemlite_seconds:
        found = gemlite(args.gemlite_seconds)
        bench.figures |= found["figures"]
        versions["gemlite"] = found["version"]
        save()


if __name__ == "__main__":
    main()
