"""How long `tersify.compile` takes, and its parts: ResNet-20* in a fresh process,
again, and 30 blocks of BitNet-2B.

`python benchmarks/compile_time.py [--quick] [--json FILE] [--only SECTION ...]
[--threads N]`

Every section has a process of its own, which has imported torch and nothing of ours
when the clock starts. The blocks have the shapes of BitNet b1.58 2B4T (width 2560, 6912
in between, 20 heads, 5 of keys and values): 2.08 · 10⁹ ternary weights, in fp32 as
users have them, 8.3 GB. `--quick` takes two of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import report
from torch import Tensor, nn

WIDTH, BETWEEN, HEADS, KEYS, BLOCKS, TOKENS = 2560, 6912, 20, 5, 30, 1
ZEROS = 0.9  # of ResNet-20*
SECTIONS = ("resnet20-star", "stack-fp32", "stack-int8")


class Block(nn.Module):
    """Attention and a gated feed-forward, both with RMS norms before them and without
    biases.
    """

    def __init__(self) -> None:
        super().__init__()
        head = WIDTH // HEADS
        self.norm, self.feed_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.key, self.value = (
            nn.Linear(WIDTH, KEYS * head, bias=False) for _ in range(2)
        )
        self.gate, self.up = (nn.Linear(WIDTH, BETWEEN, bias=False) for _ in range(2))
        self.down = nn.Linear(BETWEEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (
            layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.feed_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@torch.no_grad()
def stack(blocks: int) -> nn.Module:
    """Ternary blocks. The signs of the first are drawn; the others have them elsewhere,
    which takes less time.
    """
    torch.manual_seed(0)
    with torch.device("meta"):
        model = nn.Sequential(*(Block() for _ in range(blocks)))
    model = model.to_empty(device="cpu").eval()
    drawn: dict[str, Tensor] = {}
    for number, block in enumerate(model):
        for name, parameter in block.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            if name not in drawn:
                # so that activations keep their size
                scale = (2 / 3 * parameter.shape[1]) ** -0.5
                drawn[name] = (
                    scale
                    * torch.randint(-1, 2, parameter.shape, dtype=torch.int8).float()
                )
            parameter.copy_(drawn[name].roll(number, 0))
    return model


def resnet() -> nn.Module:
    from tersify.lab import network

    torch.manual_seed(0)
    model = network("resnet20-star").eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = parameter.data.sign() * (
                torch.rand_like(parameter) >= ZEROS
            )
    return model


class Parts:
    """Seconds inside some functions of the runtime, none of which calls another."""

    def __init__(self) -> None:
        from tersify.runtime import bound_network, compiled
        from tersify.runtime.engine import Emitter
        from tersify.runtime.ops import base

        self.seconds: dict[str, float] = {}
        for part, place, name in (
            ("capture", compiled, "capture"),
            ("checksums", compiled, "checksums"),
            ("classify", base, "classify"),
            ("pack", Emitter, "packed"),
            ("check", bound_network, "largest_difference"),
            ("check", bound_network, "differs_from_reference"),
            ("check_other_numbers", compiled, "agrees"),
        ):
            setattr(place, name, self._timed(part, getattr(place, name)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] = (
                    self.seconds.get(part, 0.0) + time.perf_counter() - start
                )

        return timed

    def with_rest(self, total: float) -> dict[str, float]:
        """What there was since the last call."""
        found, self.seconds = self.seconds, {}
        return {"total": total, **found, "rest": total - sum(found.values())}


def measured(section: str, *, threads: int, quick: bool) -> dict[str, float]:
    """In the child."""
    torch.set_num_threads(threads)
    if section != "resnet20-star":
        model, example = stack(2 if quick else BLOCKS), torch.randn(1, TOKENS, WIDTH)
    start = time.perf_counter()
    import tersify

    _ = tersify.compile  # it is imported when it is first asked for
    imported = time.perf_counter() - start
    parts = Parts()
    figures = {"import": imported}
    if section == "resnet20-star":
        example = torch.randn(1, 3, 32, 32)
        for which in ("first", "second"):
            model = resnet()
            start = time.perf_counter()
            tersify.compile(model, example)
            total = time.perf_counter() - start
            figures |= {
                f"{which}.{part}": value
                for part, value in parts.with_rest(total).items()
            }
        figures["fresh_process"] = imported + figures["first.total"]
        return figures
    start = time.perf_counter()
    compiled = tersify.compile(model, example, precision=section.removeprefix("stack-"))
    figures |= parts.with_rest(time.perf_counter() - start)
    figures["weights"] = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    figures["dense_megabytes"] = 4e-6 * figures["weights"]
    figures["packed_megabytes"] = 1e-6 * compiled.weight_bytes()
    figures["peak_megabytes"] = (
        1.024e-3 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", choices=SECTIONS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(
            json.dumps(measured(asked.child, threads=asked.threads, quick=asked.quick))
        )
        return
    figures: dict[str, float] = {}
    # sections that are not asked for keep their figures
    if asked.json and asked.json.exists():
        figures = json.loads(asked.json.read_text())["figures"]
    for section in asked.only:
        command = [
            sys.executable,
            __file__,
            "--child",
            section,
            "--threads",
            str(asked.threads),
        ]
        done = subprocess.run(
            command + ["--quick"] * asked.quick,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        figures = {
            name: value
            for name, value in figures.items()
            if not name.startswith(f"{section}.")
        }
        for name, value in json.loads(done.stdout.strip().splitlines()[-1]).items():
            figures[f"{section}.{name}"] = value
            print(f"{section + '.' + name:45} {value:14,.3f}", flush=True)
    report(
        "compile-time",
        figures,
        json_path=asked.json,
        versions={"torch": torch.__version__},
        threads=asked.threads,
    )


if __name__ == "__main__":
    main()
