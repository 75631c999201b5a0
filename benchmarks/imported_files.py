"""How small a plain `save` of somebody's checkpoint is, beside codes built by hand,
zstd-19 and order-0 entropy.

`python benchmarks/imported_files.py [--quick] [--json FILE] [--weights DIR]`. The
checkpoints are plain state dicts of fp32 tensors, made like those that others publish:
ternary of two sizes a layer, pruned with shared values, pruned alone. "By hand" is the
same network with its codes and codebooks given to `save`; zstd-19 packs a safetensors
file. The transformer and the LSTM show the groups of codes against the order-0 entropy
of each tensor's own codes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import common
import torch
import zstandard
from file_size import four_bit, ternary
from networks_of_others import minilm, speaker_lstm
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from tersify import codec, lab
from tersify.tensor import CompressedTensor, code_counts

WEIGHTS = Path(__file__).parents[2] / "shared/data/weights"
Tensors = dict[str, "CompressedTensor | Tensor"]


def two_sizes(weight: Tensor, zeros: float) -> CompressedTensor:
    """Ternary with a size of its own for what is above and what is below zero."""
    made = ternary(weight, zeros)
    sizes = [0.0, *(float(weight[made.codes == code].mean()) for code in (1, 2))]
    return CompressedTensor(
        shape=made.shape, codes=made.codes, codebook=torch.tensor(sizes)
    )


def shared_values(weight: Tensor, kept: float, values: int) -> CompressedTensor:
    """The largest weights, each as one of `values` means; the others are zero."""
    mask = ternary(weight, 1 - kept).codes.ne(0)
    flat = weight[mask].double()
    levels = flat.sort().values[
        ((torch.arange(values) + 0.5) * flat.numel() / values).long()
    ]
    for _ in range(20):
        nearest = torch.bucketize(flat, (levels[1:] + levels[:-1]) / 2)
        count = torch.bincount(nearest, minlength=values)
        mean = torch.bincount(nearest, weights=flat, minlength=values) / count.clamp(
            min=1
        )
        levels = torch.where(count > 0, mean, levels).sort().values
    codes = torch.zeros(weight.shape, dtype=torch.uint8)
    codes[mask] = (1 + torch.bucketize(flat, (levels[1:] + levels[:-1]) / 2)).to(
        torch.uint8
    )
    codebook = torch.cat([torch.zeros(1), levels.float()])
    return CompressedTensor(shape=tuple(weight.shape), codes=codes, codebook=codebook)


def pruned(weight: Tensor, zeros: float) -> CompressedTensor:
    mask = ternary(weight, zeros).codes.ne(0)
    return CompressedTensor(
        shape=tuple(weight.shape), codes=mask.to(torch.uint8), values=weight[mask]
    )


def absmean(weight: Tensor) -> CompressedTensor:
    """BitNet's ternary: rounded steps of the mean size."""
    step = weight.abs().mean()
    steps = (weight / step).round().clamp(-1, 1)
    codes = torch.where(steps < 0, 1, torch.where(steps > 0, 2, 0)).to(torch.uint8)
    return CompressedTensor(
        shape=tuple(weight.shape),
        codes=codes,
        codebook=torch.tensor([0.0, -1.0, 1.0]) * step,
    )


def checkpoints(weights: Path) -> dict[str, Tensors]:
    """Each as a packed model with its codes built by hand."""
    made: dict[str, Tensors] = {}
    small, deep = (
        load_file(weights / f"cifar10_resnet{depth}.safetensors") for depth in (20, 56)
    )
    inner = [name for name, tensor in small.items() if tensor.ndim == 4][1:]
    for percent in (45, 73):
        made[f"resnet20_ternary_{percent}"] = {
            name: two_sizes(tensor, percent / 100) if name in inner else tensor
            for name, tensor in small.items()
        }
    torch.manual_seed(0)
    squeeze = lab.network("squeezenet1_1", classes=1000).state_dict()
    made["squeezenet_33_shared_32"] = {
        name: shared_values(tensor, 0.33, 32) if tensor.ndim == 4 else tensor
        for name, tensor in squeeze.items()
    }
    made["resnet56_pruned_70"] = {
        name: pruned(tensor, 0.7) if tensor.ndim > 1 else tensor
        for name, tensor in deep.items()
    }
    return made


def order0_bytes(tensors: dict[str, CompressedTensor]) -> float:
    bits = 0.0
    for tensor in tensors.values():
        counts = code_counts(tensor).double()
        counts = counts[counts > 0]
        bits += float((counts * (counts.sum() / counts).log2()).sum())
    return bits / 8


def plain(tensor: CompressedTensor | Tensor) -> Tensor:
    return tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor


def against_hand(path: Path, weights: Path, *, quick: bool) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, packed in checkpoints(weights).items():
        state = {key: plain(tensor).contiguous() for key, tensor in packed.items()}
        figures[f"{name}_dense"] = sum(
            t.numel() * t.element_size() for t in state.values()
        )
        figures[f"{name}_by_hand"] = codec.save(packed, path)
        figures[f"{name}_plain_save"] = codec.save(state, path)
        level = 3 if quick else 19
        figures[f"{name}_zstd{level}"] = len(
            zstandard.ZstdCompressor(level=level).compress(safetensors_bytes(state))
        )
        back = codec.open(path).read().state_dict()
        if not all(
            torch.equal(back[key].view(torch.uint8), t.view(torch.uint8))
            for key, t in state.items()
            if t.ndim
        ):
            raise RuntimeError(f"{name} did not come back bit for bit")
        fraction = 100 * (
            figures[f"{name}_plain_save"] / figures[f"{name}_by_hand"] - 1
        )
        sizes = "".join(
            f" {k.removeprefix(name + '_')} {v:,.0f}"
            for k, v in figures.items()
            if name in k
        )
        print(f"{name:24}{sizes}  {fraction:+.2f} % of by hand", flush=True)
    return figures


def against_entropy(path: Path, *, quick: bool) -> dict[str, float]:
    figures: dict[str, float] = {}
    for network, state in {"minilm": minilm(), "speaker_lstm": speaker_lstm()}.items():
        if state is None:
            print(f"{network}: its package is not installed")
            continue
        weights = {
            name: tensor.float()
            for name, tensor in state.items()
            if tensor.ndim == 2 and "embed" not in name
        }
        weights = dict(list(weights.items())[: 4 if quick else 12])
        kinds = {
            "absmean": absmean,
            "pruned_90": lambda w: pruned(w, 0.9),
            "lut4": four_bit,
            "lut6": lambda w: shared_values(w, 1.0 - 1 / w.numel(), 64),
        }
        for kind, make in kinds.items():
            tensors = {name: make(weight) for name, weight in weights.items()}
            ideal = order0_bytes(tensors)
            codec.save(tensors, path)
            groups = codec.inspect(path)["groups"]
            coded = sum(
                group["bytes"] for group in groups if group["holds"].startswith("codes")
            )
            figures[f"{network}_{kind}_percent_of_order0"] = round(
                100 * (coded / ideal - 1), 3
            )
            print(
                f"{network} {kind:10} {coded:12,} bytes of codes, {100 * (coded / ideal - 1):+.2f} % of order 0",
                flush=True,
            )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="zstd-3 and four matrices a network"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument(
        "--weights",
        type=Path,
        default=WEIGHTS,
        help="the folder of the CIFAR-10 ResNets",
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "imported.terse"
        figures = against_hand(
            path, chosen.weights, quick=chosen.quick
        ) | against_entropy(path, quick=chosen.quick)
    versions = {"torch": torch.__version__, "zstandard": zstandard.__version__}
    common.report(
        "imported_files", figures, json_path=chosen.json, versions=versions, threads=1
    )


if __name__ == "__main__":
    main()
