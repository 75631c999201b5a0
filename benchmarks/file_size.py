"""How small a `.terse` file is and how fast it is read, beside zstd, xz, brotli and
NNCodec.

`python benchmarks/file_size.py [--quick] [--json FILE] [--weights FILE]`. The codes are
those of the CIFAR-10 ResNet-56: every weight of two dimensions or more, ternarized per
layer at four sparsities, with a 4-bit k-means table per layer, and pruned to 90 % zeros
in fp16. Sizes are bytes on disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import common
import numpy as np
import torch
from peers import peer_sizes, peer_versions
from safetensors.torch import load_file
from torch import Tensor, nn

from tersify import codec
from tersify.codec import native
from tersify.tensor import CompressedTensor, entropy_bits

WEIGHTS = Path(__file__).parents[2] / "shared/data/weights/cifar10_resnet56.safetensors"
Tensors = dict[str, "CompressedTensor | Tensor"]


def ternary(weight: Tensor, zeros: float) -> CompressedTensor:
    """The largest weights become ± their mean, `zeros` of them zero."""
    size = weight.abs()
    threshold = size.flatten().kthvalue(max(1, round(zeros * weight.numel()))).values
    codes = torch.where(size <= threshold, 0, torch.where(weight < 0, 1, 2)).to(
        torch.uint8
    )
    codebook = torch.tensor([0.0, -1.0, 1.0]) * size[codes > 0].mean()
    return CompressedTensor(shape=tuple(weight.shape), codes=codes, codebook=codebook)


def four_bit(weight: Tensor) -> CompressedTensor:
    """A table of 16 levels by k-means, begun on an even grid."""
    flat = weight.flatten().sort().values.double()
    levels = torch.linspace(float(flat[0]), float(flat[-1]), 16, dtype=torch.float64)
    for _ in range(30):
        nearest = torch.bucketize(flat, (levels[1:] + levels[:-1]) / 2)
        count = torch.bincount(nearest, minlength=16)
        mean = torch.bincount(nearest, weights=flat, minlength=16) / count.clamp(min=1)
        levels = torch.where(count > 0, mean, levels).sort().values
    codes = torch.bucketize(weight.double(), (levels[1:] + levels[:-1]) / 2).to(
        torch.uint8
    )
    return CompressedTensor(
        shape=tuple(weight.shape), codes=codes, codebook=levels.float()
    )


def pruned_half(weight: Tensor, zeros: float) -> CompressedTensor:
    mask = ternary(weight, zeros).codes.ne(0)
    return CompressedTensor(
        shape=tuple(weight.shape),
        codes=mask.to(torch.uint8),
        values=weight[mask].half(),
    )


def folded(state: dict[str, Tensor]) -> Tensors:
    """Each batch normalisation as one scale and one shift per channel."""
    made: Tensors = {}
    for name, tensor in state.items():
        owner, _, last = name.rpartition(".")
        if f"{owner}.running_var" not in state:
            made[name] = tensor
        elif last == "running_var":
            scale = state[f"{owner}.weight"] / (tensor + 1e-5).sqrt()
            made[f"{owner}.scale"] = scale
            made[f"{owner}.shift"] = (
                state[f"{owner}.bias"] - state[f"{owner}.running_mean"] * scale
            )
    return made


class Bench:
    """Runs the parts, prints a line each and keeps the figures."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.path = folder / "bench.terse"
        self.quick = quick
        self.figures: dict[str, float] = {}

    def note(
        self,
        name: str,
        value: float,
        unit: str,
        target: float | None = None,
        *,
        at_least: bool = False,
    ) -> None:
        self.figures[name] = round(value, 4)
        verdict = ""
        if target is not None:
            fine = value >= target if at_least else value <= target
            verdict = f"  target {'≥' if at_least else '≤'} {target:g}: {'reached' if fine else 'MISSED'}"
        print(f"{name:46} {value:12,.2f} {unit:12}{verdict}", flush=True)

    def against_entropy(
        self, name: str, tensors: dict[str, CompressedTensor], target: float | None
    ) -> None:
        """The coded groups of codes with all their side information, against an ideal
        order-0 coder.
        """
        ideal = (
            entropy_bits(tensors.values())
            * sum(t.numel() for t in tensors.values())
            / 8
        )
        codec.save(tensors, self.path)
        found = codec.inspect(self.path)
        coded = sum(
            group["bytes"]
            for group in found["groups"]
            if group["holds"].startswith("codes")
        )
        self.note(f"{name}_tersify", 100 * (coded / ideal - 1), "% of H0", target)
        self.note(
            f"{name}_tersify_whole_file",
            100 * (found["file_bytes"] / ideal - 1),
            "% of H0",
        )
        for peer, size in peer_sizes(tensors, quick=self.quick).items():
            self.note(f"{name}_{peer}", 100 * (size / ideal - 1), "% of H0")

    def unstructured(self) -> None:
        generator = torch.Generator().manual_seed(0)
        for zeros, name in ((0.5, "50"), (0.9, "90")):
            for shapes, kind in (
                ([(256, 256)], "linear"),
                ([(64, 64, 1, 1)] * 16, "pooled_1x1"),
            ):
                weights = [torch.randn(shape, generator=generator) for shape in shapes]
                tensors = {
                    f"{i}.weight": ternary(weight, zeros)
                    for i, weight in enumerate(weights)
                }
                ideal = (
                    entropy_bits(tensors.values())
                    * sum(t.numel() for t in tensors.values())
                    / 8
                )
                codec.save(tensors, self.path)
                coded = codec.inspect(self.path)["groups"][0]["bytes"]
                self.note(
                    f"unstructured_{kind}_{name}",
                    100 * (coded / ideal - 1),
                    "% of H0",
                    1.5,
                )

    def pruned(self, weights: dict[str, Tensor]) -> None:
        tensors = {name: pruned_half(weight, 0.9) for name, weight in weights.items()}
        self.note("pruned_90_fp16_file", codec.save(tensors, self.path), "bytes")
        dense = {name: tensor.to_dense() for name, tensor in tensors.items()}
        for peer, size in peer_sizes(dense, quick=self.quick).items():
            self.note(f"pruned_90_fp16_{peer}", size, "bytes")

    def whole_file(self, state: dict[str, Tensor]) -> None:
        def packed(tensors: Tensors) -> Tensors:
            return {
                name: ternary(tensor, 0.9)
                if isinstance(tensor, Tensor) and tensor.ndim > 1
                else tensor
                for name, tensor in tensors.items()
            }

        lossless = codec.save(packed(dict(state)), self.path)
        half = codec.save(packed(dict(state)), self.path, floats="fp16")
        small = codec.save(packed(folded(state)), self.path, floats="fp16")
        self.note("resnet56_ternary_90_file_fp32", lossless, "bytes")
        self.note("resnet56_ternary_90_file_bn_fp16", half, "bytes", 68_000)
        self.note("resnet56_ternary_90_file_bn_folded_fp16", small, "bytes", 61_000)
        self.note(
            "resnet56_dense_fp32",
            sum(4 * tensor.numel() for tensor in state.values()),
            "bytes",
        )

    def speed(self, weights: dict[str, Tensor]) -> None:
        """A network of 11.8 M weights made of real kernels, drawn with replacement; one
        thread.
        """
        kernels = torch.cat(
            [
                w.reshape(-1, 9)
                for w in weights.values()
                if w.ndim == 4 and w.shape[0] == 64
            ]
        )
        network = nn.Sequential(
            *[nn.Conv2d(512, 512, 3, bias=False) for _ in range(1 if self.quick else 5)]
        )
        generator = torch.Generator().manual_seed(0)
        tensors: Tensors = {}
        for name, parameter in network.state_dict().items():
            drawn = kernels[
                torch.randint(0, len(kernels), (512 * 512,), generator=generator)
            ].reshape(parameter.shape)
            tensors[name] = ternary(
                drawn * torch.randn(512, 1, 1, 1, generator=generator).mul(0.3).exp(),
                0.9,
            )
        million = sum(t.numel() for t in tensors.values()) / 1e6
        self.note("speed_network", million, "M weights")
        self.note(
            "encode",
            million / _fastest(lambda: codec.save(tensors, self.path)),
            "M/s",
            10,
            at_least=True,
        )
        core = million / _fastest(lambda: codec.open(self.path).read(threads=1))
        self.note("decode_core", core, "M/s", 300, at_least=True)
        load = million / _fastest(
            lambda: codec.load(self.path, into=network, threads=1)
        )
        self.note("load", load, "M/s", 150, at_least=True)


def _fastest(action: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one sparsity, light settings of the peers"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    state = load_file(chosen.weights)
    weights = {name: tensor for name, tensor in state.items() if tensor.ndim > 1}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), quick=chosen.quick)
        targets = (
            {90: -12.0} if chosen.quick else {50: -12.0, 75: None, 90: -12.0, 95: -11.0}
        )
        for percent, target in targets.items():
            tensors = {
                name: ternary(weight, percent / 100) for name, weight in weights.items()
            }
            bench.against_entropy(f"ternary_{percent}", tensors, target)
        bench.against_entropy(
            "lut_4bit",
            {name: four_bit(weight) for name, weight in weights.items()},
            -9.0,
        )
        bench.unstructured()
        bench.pruned(weights)
        bench.whole_file(state)
        bench.speed(weights)
    compiled = native.extension()
    versions = {"torch": torch.__version__, "numpy": np.__version__, **peer_versions()}
    path = "reference" if compiled is None else compiled.paths()[0]
    common.report(
        "file_size",
        bench.figures,
        json_path=chosen.json,
        versions=versions,
        threads=1,
        decoder=path,
    )


if __name__ == "__main__":
    main()
