"""One decoding step of a BitNet-2B-shaped network, 30 blocks in one CUDA graph: ternary
weights beside bf16.

The network has BitNet b1.58 2B4T's sizes and order: RMS norms before and inside both
halves of a block, grouped heads with turned positions, relu² gates. The cache holds 128
tokens. Embedding and head are left out on both sides. Usage: gpu_decoder.py [--json
FILE] [--blocks N] [--warm]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.nn.functional as F
from common import report
from torch import Tensor

from tersify.runtime.gpu import attention, driver, ternary
from tersify.runtime.gpu.launch import Launch, Tiling
from tersify.runtime.gpu.rounding import Before, reference
from tersify.runtime.gpu.timing import microseconds

HIDDEN, INNER, HEADS, GROUPS, SIZE, ROOM, EPS = 2560, 6912, 20, 5, 128, 160, 1e-5
POSITION = 128
DTYPE = torch.bfloat16


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """Signs and scales of the four products, gains of the four norms, and the cache."""

    signs: dict[str, Tensor]
    scales: dict[str, float]
    gains: dict[str, Tensor]
    keys: Tensor
    values: Tensor


SHAPES = {
    "qkv": ((HEADS + 2 * GROUPS) * SIZE, HIDDEN),
    "o": (HIDDEN, HIDDEN),
    "gate_up": (2 * INNER, HIDDEN),
    "down": (HIDDEN, INNER),
}

KINDS = ("qkv", "attention", "o", "gate_up", "down")  # launches of a block


def _tiling(*flat: int) -> Tiling:
    return Tiling.read(flat)


TILINGS = {  # the best of each shape by itself, and others that stand near
    "each": {
        "qkv": _tiling(2, 8, 1, 4),
        "o": _tiling(1, 16, 2, 2),
        "gate_up": _tiling(2, 4, 1, 2),
        "down": _tiling(2, 8, 1, 4),
    },
    "shared": {
        "qkv": _tiling(1, 8, 2, 0),
        "o": _tiling(1, 8, 2, 0),
        "gate_up": _tiling(4, 4, 1, 0),
        "down": _tiling(1, 16, 2, 0),
    },
    "narrow": {
        "qkv": _tiling(1, 16, 1, 2),
        "o": _tiling(1, 16, 1, 2),
        "gate_up": _tiling(2, 4, 1, 2),
        "down": _tiling(1, 16, 1, 2),
    },
    "eight": dict.fromkeys(SHAPES, _tiling(1, 8, 1, 2)),
    "few": {
        "qkv": _tiling(1, 8, 1, 2),
        "o": _tiling(1, 8, 1, 2),
        "gate_up": _tiling(2, 4, 1, 2),
        "down": _tiling(1, 16, 1, 2),
    },
}


def blocks_of(count: int) -> list[Block]:
    g = torch.Generator("cuda").manual_seed(0)
    made = []
    for _ in range(count):
        signs = {
            n: torch.randint(-1, 2, s, generator=g, device="cuda", dtype=torch.int8)
            for n, s in SHAPES.items()
        }
        gains = {
            n: 1
            + 0.1 * torch.randn(s[1], generator=g, device="cuda", dtype=torch.float32)
            for n, s in SHAPES.items()
        }
        cache = [
            torch.randn(GROUPS, ROOM, SIZE, generator=g, device="cuda").to(DTYPE)
            for _ in range(2)
        ]
        scales = {n: 1.2 / s[1] ** 0.5 for n, s in SHAPES.items()}
        made.append(
            Block(
                signs=signs, scales=scales, gains=gains, keys=cache[0], values=cache[1]
            )
        )
    return made


def angles() -> tuple[Tensor, Tensor]:
    turns = 500000.0 ** (-torch.arange(0, SIZE, 2, device="cuda") / SIZE)
    every = torch.arange(ROOM, device="cuda").float()[:, None] * turns
    return every.cos(), every.sin()


class Dense(torch.nn.Module):
    """The step in plain torch. `weights`: dense bf16 by cuBLAS; float64 for the check."""

    def __init__(self, blocks: list[Block], dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weights = [
            {
                n: (s.to(torch.float64) * b.scales[n]).to(dtype)
                for n, s in b.signs.items()
            }
            for b in blocks
        ]
        self.gains = [{n: g.to(dtype) for n, g in b.gains.items()} for b in blocks]
        self.keys = [b.keys.clone().to(dtype) for b in blocks]
        self.values = [b.values.clone().to(dtype) for b in blocks]
        self.cosine, self.sine = (a[POSITION].repeat(2).to(dtype) for a in angles())

    def attend(self, qkv: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = qkv.view(-1, SIZE).split([HEADS, GROUPS, GROUPS])
        q, k = (
            x * self.cosine
            + torch.cat([-x[:, SIZE // 2 :], x[:, : SIZE // 2]], -1) * self.sine
            for x in (q, k)
        )
        keys[:, POSITION], values[:, POSITION] = k, v
        made = F.scaled_dot_product_attention(
            q.view(1, HEADS, 1, SIZE),
            keys[None, :, : POSITION + 1],
            values[None, :, : POSITION + 1],
            enable_gqa=True,
        )
        return made.reshape(1, -1)

    def product(self, x: Tensor, index: int, name: str) -> Tensor:
        normed = F.rms_norm(x, x.shape[-1:], self.gains[index][name], EPS)
        return F.linear(normed, self.weights[index][name])

    def kept(self, x: Tensor) -> Tensor:
        """What a kernel writes down."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        for i in range(len(self.weights)):
            heard = self.kept(
                self.attend(
                    self.kept(self.product(x, i, "qkv")), self.keys[i], self.values[i]
                )
            )
            x = self.kept(x + self.product(heard, i, "o"))
            gate, up = self.kept(self.product(x, i, "gate_up")).chunk(2, -1)
            x = self.kept(x + self.product(gate.relu().square() * up, i, "down"))
        return x


class Rounded(Dense):
    """The same in float64, rounded where ours is: to 8 bits before every product, to
    bf16 behind it.
    """

    def kept(self, x: Tensor) -> Tensor:
        return x.to(DTYPE).to(self.dtype)

    def product(self, x: Tensor, index: int, name: str) -> Tensor:
        normed = F.rms_norm(x, x.shape[-1:], self.gains[index][name], EPS)
        steps = reference(normed.float(), swapped=False)
        return F.linear(
            steps.steps.double() * steps.scale.double()[:, None],
            self.weights[index][name],
        )


class Packed:
    """The step from two-bit weights: norm, rounding and residual inside the products,
    five kernels a block.
    """

    def __init__(self, blocks: list[Block], tilings: dict[str, Tiling]) -> None:
        self.words = [{n: ternary.pack(s) for n, s in b.signs.items()} for b in blocks]
        self.scales = [
            {
                n: torch.full((SHAPES[n][0],), s, device="cuda")
                for n, s in b.scales.items()
            }
            for b in blocks
        ]
        self.gains = [b.gains for b in blocks]
        self.caches = [(b.keys.clone(), b.values.clone()) for b in blocks]
        self.angles = angles()
        self.position = torch.tensor([POSITION], dtype=torch.int32, device="cuda")
        self.tilings = tilings
        torch.cuda.synchronize()

    def launches(self, x: Tensor) -> tuple[list[Launch], Tensor]:
        made: list[Launch] = []

        def product(
            i: int,
            name: str,
            x: Tensor,
            residual: Tensor | None = None,
            factor: Tensor | None = None,
        ) -> Tensor:
            out = torch.full(
                (1, SHAPES[name][0]), float("nan"), device="cuda", dtype=DTYPE
            )
            before = Before(gain=self.gains[i][name], eps=EPS, factor=factor)
            made.append(
                ternary.launch(
                    self.words[i][name],
                    x,
                    self.scales[i][name],
                    None,
                    out,
                    self.tilings[name],
                    round_here=True,
                    before=before,
                    residual=residual,
                )
            )
            return out

        for i, (keys, values) in enumerate(self.caches):
            qkv = product(i, "qkv", x)
            heard = torch.full(
                (1, HEADS * SIZE), float("nan"), device="cuda", dtype=DTYPE
            )
            made.append(
                attention.launch(qkv, self.angles, keys, values, self.position, heard)
            )
            x = product(i, "o", heard, x)
            both = product(i, "gate_up", x)
            x = product(i, "down", both[:, :INNER], x, both[:, INNER:])
        return made, x

    def size_bytes(self) -> int:
        return sum(t.nbytes for words in self.words for t in words.values())


def time_of(step: Callable[[], object]) -> float:
    return microseconds([step], replays=40)


def main() -> None:  # noqa: C901 - one benchmark, read from top to bottom
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument(
        "--warm", action="store_true", help="only let torch.compile fill its cache"
    )
    args = parser.parse_args()
    figures: dict[str, float] = {}

    def save() -> None:
        for peer in ("bf16", "bf16_compiled"):
            if "ours_us" in figures and f"{peer}_us" in figures:
                figures[f"times_as_fast_as_{peer}"] = (
                    figures[f"{peer}_us"] / figures["ours_us"]
                )
        report(
            "gpu-decoder",
            {k: round(v, 6) for k, v in figures.items()},
            json_path=args.json,
            versions={"torch": str(torch.__version__), "cuda": str(torch.version.cuda)},
            gpus=[torch.cuda.get_device_name()],
        )

    with torch.no_grad():
        blocks = blocks_of(args.blocks)
        x = torch.randn(
            1, HIDDEN, device="cuda", generator=torch.Generator("cuda").manual_seed(3)
        ).to(DTYPE)
        if args.warm:
            torch.compile(Dense(blocks, DTYPE))(x)
            return

        few = blocks[:2]
        wanted = Rounded(few, torch.float64)(x.double())
        exact = Dense(few, torch.float64)(x.double())
        apart = []
        for tilings in TILINGS.values():
            launches, out = Packed(few, tilings).launches(x)
            torch.cuda.synchronize()  # weights are read before a kernel waits
            for launch in launches:
                driver.run(launch, x.device)
            apart.append((out.double() - wanted).abs().max() / wanted.abs().max())
        figures["error_two_blocks"] = float(max(apart))
        figures["rounding_two_blocks"] = float(
            (wanted - exact).abs().max() / exact.abs().max()
        )
        print({k: f"{v:.2e}" for k, v in figures.items()}, flush=True)
        save()

        for name, tilings in TILINGS.items():
            packed = Packed(blocks, tilings)
            figures["packed_bytes"] = float(packed.size_bytes())
            launches, _ = packed.launches(x)

            def step(launches: list[Launch] = launches) -> None:
                for launch in launches:
                    driver.run(launch, x.device)

            figures[f"ours_{name}_us"] = time_of(step)
            print(f"ours, {name}: {figures[f'ours_{name}_us']:.1f} us", flush=True)
            save()
            if name == "each":
                for part in ("attention", *SHAPES):
                    picked = [
                        launch
                        for launch, kind in zip(
                            launches, KINDS * args.blocks, strict=True
                        )
                        if kind == part
                    ]

                    def alone(picked: list[Launch] = picked) -> None:
                        for launch in picked:
                            driver.run(launch, x.device)

                    figures[f"alone_{part}_us"] = time_of(alone) / args.blocks
                    print(
                        f"  {part} alone: {figures[f'alone_{part}_us']:.2f} us",
                        flush=True,
                    )
            del packed, launches, step
        figures["ours_us"] = min(figures[f"ours_{name}_us"] for name in TILINGS)
        dense = Dense(blocks, DTYPE)
        figures["bf16_us"] = time_of(lambda: dense(x))
        print(f"bf16: {figures['bf16_us']:.1f} us", flush=True)
        save()
        fused = torch.compile(dense)
        fused(x)
        figures["bf16_compiled_us"] = time_of(lambda: fused(x))
        print(f"bf16, torch.compile: {figures['bf16_compiled_us']:.1f} us", flush=True)
        save()


if __name__ == "__main__":
    main()
