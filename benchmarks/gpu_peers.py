"""Times of gemlite's layers, in a process of their own: `python gpu_peers.py OUT.json
[MODE ...]`.

Its kernels are tuned by Triton when they first run, which takes a while; every figure
is written when it is known.
"""

from __future__ import annotations

import copy
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from gpu_layers import Case
from torch import nn

from tersify.runtime.gpu.timing import copies_of, microseconds

CASES = ((4096, 4096, 1), (14336, 4096, 1))
MODES = ("A16W158", "A16W2", "A16W4", "A8W158")


def layer_of(mode: str, case: Case) -> nn.Module:
    from gemlite import helper

    one = torch.ones(1, device="cuda")
    if mode in ("A16W158", "A8W158"):
        make = helper.A16W158_INT if mode == "A16W158" else helper.A8W158_INT_dynamic
        # it leaves scales on the CPU
        return make(dtype=torch.float16).from_weights(case.signs().half(), one).cuda()
    groups = torch.ones(
        case.rows * case.features // 128, 1, dtype=torch.float16, device="cuda"
    )
    codes = (case.signs() + 1).to(torch.uint8) if mode == "A16W2" else case.codes()
    return helper.A16Wn().from_weights(
        codes, groups, groups, 2 if mode == "A16W2" else 4, 128
    )


def main(path: Path, modes: list[str]) -> None:
    import gemlite

    gemlite.set_autotune("fast")
    figures: dict[str, float] = {}
    # Mode by mode: where time runs out, the first modes have all their shapes.
    for mode in modes:
        for rows, features, vectors in CASES:
            case = Case(rows=rows, features=features, vectors=vectors)
            key = f"gemlite_{mode}_{case.name}_batch{vectors}_us"
            try:
                layer = layer_of(mode, case)
                size = sum(t.nbytes for t in (*layer.parameters(), *layer.buffers()))
                layers = [
                    layer,
                    *(copy.deepcopy(layer) for _ in range(copies_of(size) - 1)),
                ]
                x = case.x()
                layer(x)
                figures[key] = microseconds(
                    [lambda one=one, x=x: one(x) for one in layers]
                )
                print(key, round(figures[key], 2), flush=True)
            except Exception as error:
                # a mode that does not run here is left out, and said so
                print(
                    key, "failed:", type(error).__name__, str(error)[:200], flush=True
                )
            path.write_text(
                json.dumps({"figures": figures, "version": gemlite_version()}, indent=1)
                + "\n"
            )


def gemlite_version() -> str:
    import gemlite

    try:
        return version("gemlite")
    except PackageNotFoundError:
        return str(getattr(gemlite, "__version__", "unknown"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(MODES))
