"""Linear layers from packed weights on the GPU, beside cuBLAS in bf16, torch's int4 and gemlite.

Microseconds a layer: medians over replays of a CUDA graph that streams more weights than the caches hold.
Usage: gpu_linear.py [--quick] [--json FILE] [--sweep FILE] [--gemlite FILE.json of gpu_peers.py]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
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
from tersify.runtime.gpu.tuning import candidates

SHAPES = (
    (4096, 4096),
    (14336, 4096),
    (4096, 14336),
    (6912, 2560),
    (2560, 6912),
    (3840, 2560),
    (2560, 2560),
    (13824, 2560),
)
TOLERANCE = {"fp16": 2e-3, "int8": 2e-3}  # int8 in fp16 outputs; its whole numbers are compared by the tests


class Bench:
    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.figures: dict[str, float] = {}
        self.best: dict[str, Any] = {}
        self.sweep: dict[str, dict[str, float]] = {}

    def tuned(
        self, key: str, settings: Iterable[Any], works: Callable[[Any], list[list[Launch]]], wanted: torch.Tensor
    ) -> None:
        """The fastest setting whose result is right. A wrong one stops everything."""
        settings = list(settings)
        made = {str(s): works(s) for s in settings}
        times: dict[str, float] = {}
        for setting in settings:
            launches = made.pop(str(setting))
            out = launches[0][-1].arguments[_OUT[launches[0][-1].kernel]]
            assert isinstance(out, torch.Tensor)
            try:
                for launch in launches[0]:
                    driver.run(launch, out.device)
                apart = error(out, wanted)
                if not apart <= TOLERANCE["fp16"]:
                    print(f"WRONG {key} {setting}: {apart:.1e}", flush=True)
                    self.figures[f"wrong_{key}"] = apart
                    continue
                times[str(setting)] = microseconds(
                    [run(one, out) for one in launches], replays=10 if self.quick else 20
                )
                self.best.setdefault(f"{key}_error", apart)
            except RuntimeError as problem:
                print(f"FAILED {key} {setting}: {problem}", flush=True)
        if not times:
            return
        ranked = sorted(times, key=times.__getitem__)
        self.sweep[key] = {name: round(times[name], 3) for name in ranked}
        chosen = next(s for s in settings if str(s) == ranked[0])
        again = microseconds([run(one, wanted) for one in works(chosen)], replays=60)
        self.figures[f"{key}_us"] = again
        self.figures[f"{key}_error"] = self.best.pop(f"{key}_error")
        self.best[key] = str(chosen)
        print(f"{key}: {again:.2f} us, {ranked[0]}; then {[round(times[r], 2) for r in ranked[1:4]]}", flush=True)

    def peer(self, key: str, works: Callable[[Case], list[Callable[[], torch.Tensor]]], case: Case) -> None:
        try:
            self.figures[f"{key}_us"] = microseconds(works(case), replays=60)
            print(f"{key}: {self.figures[f'{key}_us']:.2f} us", flush=True)
        except Exception as problem:  # another torch may have other operators
            print(f"FAILED {key}: {type(problem).__name__} {str(problem)[:200]}", flush=True)


_OUT = {"ternary": 10, "table4": 10, "sparse": 8}


def measured(bench: Bench, save: Callable[[], None]) -> None:
    """All of our kernels and torch's peers, the most wanted first."""
    for rows, features in SHAPES[: 2 if bench.quick else None]:
        for vectors in (1, 16, 8, 32) if (rows, features) == (14336, 4096) else (1,):
            start = time.time()
            case = Case(rows=rows, features=features, vectors=vectors)
            tag = f"{case.name}_batch{vectors}"
            bench.peer(f"cublas_bf16_{tag}", bf16_works, case)
            signs = case.signs()
            words = clones(ternary.pack(signs))
            torch.cuda.synchronize()
            settings = list(candidates(vectors))
            for mode in ("int8", "int8 inside", "fp16") if vectors == 1 else ("int8", "int8 rounded", "fp16"):
                bench.tuned(
                    f"ternary_{mode.replace(' ', '_')}_{tag}",
                    settings,
                    lambda s, mode=mode: ternary_works(case, mode, s, words),
                    expected(case, signs, rounded=mode != "fp16"),
                )
            if (rows, features) in SHAPES[:2] and vectors in (1, 16):
                bench.peer(f"torch_int4_{tag}", tinygemm_works, case)
                codes, levels = case.codes(), case.levels()
                packed = clones(table4.pack(codes))
                torch.cuda.synchronize()
                weight = levels.double()[codes.long()]
                step = float(levels.float().abs().max()) / 127
                for mode in ("fp16", "int8", "int8 inside") if vectors == 1 else ("fp16", "int8"):
                    bench.tuned(
                        f"table4_{mode.replace(' ', '_')}_{tag}",
                        settings,
                        lambda s, mode=mode: table_works(case, mode, s, packed),
                        expected(case, weight, rounded=mode != "fp16", step=None if mode == "fp16" else step),
                    )
                del packed, weight
            if vectors == 1 and (rows, features) in SHAPES[:3]:
                few = Case(rows=rows, features=features, vectors=1, zeros=0.9)
                lists = sparse.pack(few.signs())
                bench.figures[f"sparse_bits_{few.name}"] = (
                    8 * (lists.data.nbytes + lists.starts.nbytes) / (rows * features)
                )
                many = clones_of_lists(lists)
                torch.cuda.synchronize()
                for mode in ("fp16", "int8 inside"):
                    bench.tuned(
                        f"sparse_{mode.replace(' ', '_')}_{tag}",
                        list(product((1, 2, 4, 8), (1, 2, 4, 8))),
                        lambda s, mode=mode: sparse_works(few, mode, *s, many),
                        expected(few, few.signs(), rounded=mode != "fp16"),
                    )
                del many
            del words
            torch.cuda.empty_cache()
            print(f"-- {tag}: {time.time() - start:.1f} s", flush=True)
            save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sweep", type=Path)
    args = parser.parse_args()
    bench = Bench(quick=args.quick)

    def save() -> None:
        if args.json:
            args.json.write_text(json.dumps({"figures": bench.figures, "best": bench.best}, indent=1) + "\n")
        if args.sweep:
            args.sweep.write_text(json.dumps(bench.sweep, indent=1) + "\n")

    measured(bench, save)
    save()


if __name__ == "__main__":
    main()
