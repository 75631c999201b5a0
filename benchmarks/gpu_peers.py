"""Times of gemlite's layers, in a process of their own: `python gpu_peers.py OUT.json [fast|max]`.

Its kernels are tuned by Triton when they first run, which can take minutes; every figure is written when it is known.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import torch
from gpu_layers import Case

from tersify.runtime.gpu.timing import copies_of, microseconds

SHAPES = ((4096, 4096), (14336, 4096))


def main(path: Path, tuning: str) -> None:
    import gemlite
    from gemlite import helper

    gemlite.set_autotune(tuning)
    figures: dict[str, float] = {}
    for vectors in (1, 16):
        for rows, features in SHAPES if vectors == 1 else SHAPES[1:]:
            case = Case(rows=rows, features=features, vectors=vectors)
            signs, one = case.signs().half(), torch.ones(1)
            codes = case.codes()
            groups = torch.ones(rows * features // 128, 1, dtype=torch.float16, device="cuda")
            makers = {
                "A16W158": lambda: helper.A16W158_INT(dtype=torch.float16).from_weights(signs, one),
                "A8W158": lambda: helper.A8W158_INT_dynamic(dtype=torch.float16).from_weights(signs, one),
                "A16W2": lambda: helper.A16Wn().from_weights((signs + 1).to(torch.uint8), groups, groups, 2, 128),
                "A16W4": lambda: helper.A16Wn().from_weights(codes, groups, groups, 4, 128),
            }
            for name, make in makers.items():
                key = f"gemlite_{name}_{case.name}_batch{vectors}_us"
                try:
                    layer = make()
                    size = sum(t.nbytes for t in (*layer.parameters(), *layer.buffers()))
                    layers = [layer, *(copy.deepcopy(layer) for _ in range(copies_of(size) - 1))]
                    x = case.x()
                    layer(x)
                    figures[key] = microseconds([lambda one=one, x=x: one(x) for one in layers])
                    print(key, round(figures[key], 2), flush=True)
                except Exception as error:  # a mode that does not run here is left out, and said so
                    print(key, "failed:", type(error).__name__, str(error)[:200], flush=True)
                path.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "fast")
