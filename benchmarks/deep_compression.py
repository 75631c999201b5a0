"""Deep Compression's bytes by its own coder (relative index and Huffman) beside the
same network as `.terse`.

usage: python benchmarks/deep_compression.py [--quick] [--json FILE] [--sparsity S] [--bits B] [--run DIR]

Without --run: the pretrained CIFAR-10 ResNet-20 and ResNet-56, pruned by magnitude and
clustered without retraining. With --run: the model.terse of a trained run, such as
`tersify compress resnet20 --weights FILE --data cifar10
--recipe deep-compression --epochs 20 --out DIR`. Both coders store the same codes, codebooks and fp32 rest; the
classical stream is decoded again and compared.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from common import report  # first: it sets what must stand before torch is imported
from huffman import decode_codes, encode_tensor

import tersify
from tersify import Recipe, Rule
from tersify.lab import network
from tersify.lab.trainer import load_weights
from tersify.methods import KMeans, Prune
from tersify.tensor import CompressedModel, CompressedTensor

WEIGHTS = Path(__file__).parents[2] / "shared/data/weights"
CONV_INDEX_BITS, LINEAR_INDEX_BITS = 8, 5  # as Han et al. choose them


def compressed(name: str, *, sparsity: float, bits: int) -> CompressedModel:
    model = load_weights(network(name), WEIGHTS / f"cifar10_{name}.safetensors")
    chain = (Prune(sparsity=sparsity), KMeans(bits=bits))
    return tersify.compress_(model, Recipe(rules=(Rule(methods=chain),)))


def classical_bytes(packed: CompressedModel) -> int:
    """Every compressed tensor through the classical coder, checked, and the rest as it
    is.
    """
    total = 0
    for name, tensor in packed.items():
        if not isinstance(tensor, CompressedTensor) or tensor.codebook is None:
            assert not isinstance(tensor, CompressedTensor), (
                f"{name!r} is not clustered yet; train past kmeans' begin"
            )
            total += tensor.numel() * tensor.element_size()
            continue
        index_bits = CONV_INDEX_BITS if len(tensor.shape) == 4 else LINEAR_INDEX_BITS
        data = encode_tensor(tensor, index_bits=index_bits)
        assert torch.equal(
            torch.from_numpy(decode_codes(data, tensor.numel())).view(tensor.shape),
            tensor.codes,
        ), name
        total += len(data)
    return total


def measured(label: str, packed: CompressedModel) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        ours = tersify.save(packed, Path(folder) / "net.terse")
    dense, classical = packed.dense_bytes(), classical_bytes(packed)
    saved = 100 * (1 - ours / classical)
    print(
        f"  {label:<10} {packed.sparsity_percent():5.1f} % zeros   dense {dense:>10,}   relative index + Huffman "
        f"{classical:>9,} ({dense / classical:.1f}×)   .terse {ours:>9,} ({dense / ours:.1f}×, {saved:.1f} % less)",
        flush=True,
    )
    figures = {
        "dense_bytes": dense,
        "huffman_bytes": classical,
        "terse_bytes": ours,
        "saved_percent": saved,
    }
    return {f"{label}_{key}": value for key, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="ResNet-20 only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sparsity", type=float, default=0.8)
    parser.add_argument("--bits", type=int, default=5)
    parser.add_argument(
        "--run", type=Path, help="a run directory, instead of the pretrained networks"
    )
    args = parser.parse_args()
    figures: dict[str, float] = {}
    print(
        "bytes of the whole network, codebooks, tables, biases and batch norms included"
    )
    if args.run:
        figures |= measured(
            args.run.name, tersify.open(args.run / "model.terse").read()
        )
    else:
        for name in ("resnet20",) if args.quick else ("resnet20", "resnet56"):
            figures |= measured(
                name, compressed(name, sparsity=args.sparsity, bits=args.bits)
            )
    report(
        "deep_compression",
        figures,
        json_path=args.json,
        versions={"torch": torch.__version__},
    )


if __name__ == "__main__":
    main()
