"""`tersify squeeze` on a pretrained CIFAR-10 ResNet beside `lut-4-sensitivity` with the
plain coder.

The price of a bit is chosen on held-out training images; the 10,000 test images are
looked at once, at the end.

usage: python benchmarks/squeeze.py --weights FILE.safetensors [--network resnet56] [--data-root DIR] [--drop 0.2]
       [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path

from common import report  # first: it sets what must stand before torch is imported

import torch  # isort: skip

import tersify
from tersify.lab import dataset, network, normalize
from tersify.lab.squeeze import squeeze
from tersify.lab.stored_networks import load_weights
from tersify.lab.trainer import evaluate
from tersify.tensor import CompressedModel
from tersify.tensor.model import load_state

IMAGES, QUICK_IMAGES = 1024, 256
HELD_OUT, QUICK_HELD_OUT = 5000, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--network", default="resnet56")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--drop", type=float, default=0.2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    data = dataset("cifar10", root=given.data_root)
    model = load_weights(network(given.network), given.weights).eval()
    images, held_out = (
        (QUICK_IMAGES, QUICK_HELD_OUT) if given.quick else (IMAGES, HELD_OUT)
    )

    def accuracy(net: torch.nn.Module) -> float:
        split = data.test[:held_out] if given.quick else data.test
        return evaluate(net, data, split, device=torch.device("cpu"), amp=False)[
            "accuracy"
        ]

    def measured(name: str, packed: CompressedModel) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            size = tersify.save(packed, Path(folder) / "net.terse")
        net = load_state(packed, copy.deepcopy(model)).eval()
        found = {f"{name}_accuracy": accuracy(net), f"{name}_bytes": float(size)}
        print(f"{name}: {found[f'{name}_accuracy']:.2f} %, {size:,} bytes", flush=True)
        return found

    figures = {"dense_accuracy": accuracy(model)}
    print(f"dense: {figures['dense_accuracy']:.2f} %", flush=True)
    picked = torch.randperm(
        len(data.train), generator=torch.Generator().manual_seed(0)
    )[:images]
    batches = [
        (normalize(data.train.images[i], data), data.train.labels[i])
        for i in picked.split(4)
    ]
    table = tersify.compress_(
        copy.deepcopy(model), "lut-4-sensitivity", calibration=batches
    )
    figures |= measured("lut_4_sensitivity", table)
    found = squeeze(
        model, data, drop=given.drop, images=images, held_out=held_out, tell=print
    )
    figures |= measured("squeeze", found.packed) | {"price": found.price}
    fewer = 100 * (1 - figures["squeeze_bytes"] / figures["lut_4_sensitivity_bytes"])
    print(f"squeeze takes {fewer:.1f} % fewer bytes")
    figures["fewer_percent"] = fewer
    report(
        "squeeze", figures, json_path=given.json, versions={"torch": torch.__version__}
    )


if __name__ == "__main__":
    main()
