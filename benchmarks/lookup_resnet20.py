"""Lookup tables on the pretrained CIFAR-10 ResNet-20: accuracy on the 10,000 test
images, bytes, and time to fit.

usage: python benchmarks/lookup_resnet20.py --weights FILE.safetensors [--data-root DIR] [--train STEPS] [--quick]
       [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from pathlib import Path

from common import report  # first: it sets what must stand before torch is imported

import torch  # isort: skip
import torch.nn.functional as F  # isort: skip
from torch import nn

import tersify
from tersify import CompressedModel, Recipe, Rule
from tersify.lab import Augmentation, Data, Split, augment, dataset, network, normalize
from tersify.lab.stored_networks import load_weights
from tersify.lab.trainer import evaluate
from tersify.methods import Lookup
from tersify.tensor import Table

PLAIN = {"placement": "uniform", "fit": "nearest", "shift": False}
ROWS = {
    "fixed point 8": Lookup(n=8, **PLAIN),
    "fixed point 4": Lookup(n=4, m=4, **PLAIN),
    "paper, no shift": Lookup(fit="paper", shift=False),
    "paper": Lookup(fit="paper"),
    "nearest": Lookup(fit="nearest"),
    "lloyd": Lookup(fit="lloyd"),
    "optimal": Lookup(),
    "optimal, sign in code": Lookup(sign_in_code=True),
    "sensitivity": Lookup(fit="sensitivity"),
}
CALIBRATION_IMAGES, BATCH = 1024, 128
AUGMENTATION = Augmentation(crop_padding=4, flip=True)


def calibration(data: Data, images: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    chosen = torch.randperm(
        len(data.train), generator=torch.Generator().manual_seed(0)
    )[:images]
    return [
        (normalize(data.train.images[i], data), data.train.labels[i])
        for i in chosen.split(4)
    ]


def short_training(model: nn.Module, data: Data, steps: int) -> CompressedModel:
    """Codes and tables trained for a few steps towards the outputs of the network they
    came from.
    """
    torch.manual_seed(0)
    teacher = copy.deepcopy(model).eval()
    session = tersify.attach(model.train(), "lut-4", epochs=1, steps_per_epoch=steps)
    optimizer = torch.optim.Adam(session.param_groups(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        index = torch.randint(len(data.train), (BATCH,), generator=draw)
        images = normalize(augment(data.train.images[index], AUGMENTATION, draw), data)
        session.step()
        with torch.no_grad():
            wanted = F.log_softmax(teacher(images) / 2, 1)
        got = F.log_softmax(model(images) / 2, 1)
        loss = 4 * F.kl_div(got, wanted, log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    packed = session.pack()
    session.bake_()
    return packed


def sizes(packed: CompressedModel) -> tuple[int, int]:
    """Bytes of codes and tables, and of the whole file."""
    tables = [Table.of(tensor) for tensor in packed.compressed().values()]
    with tempfile.TemporaryDirectory() as folder:
        file_bytes = tersify.save(packed, Path(folder) / "net.terse")
    return sum(t.code_bytes() + t.table_bytes() for t in tables), file_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument(
        "--train",
        type=int,
        default=0,
        help="also train codes and tables for so many steps",
    )
    parser.add_argument(
        "--quick", action="store_true", help="the first 1000 test images"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    data = dataset("cifar10", root=args.data_root)
    test = (
        Split(data.test.images[:1000], data.test.labels[:1000])
        if args.quick
        else data.test
    )
    figures: dict[str, float] = {}

    def show(
        name: str, model: nn.Module, packed: CompressedModel | None, seconds: float
    ) -> None:
        accuracy = evaluate(model, data, test, device=torch.device("cpu"), amp=False)[
            "accuracy"
        ]
        stored, file_bytes = sizes(packed) if packed else (0, 0)
        key = name.replace(", ", "_").replace(" ", "_")
        figures.update(
            {
                f"{key}.accuracy": accuracy,
                f"{key}.stored_bytes": stored,
                f"{key}.file_bytes": file_bytes,
                f"{key}.seconds": seconds,
            }
        )
        print(
            f"{name:24} {accuracy:6.2f} %  {stored:>9,} B stored  {file_bytes:>9,} B file  {seconds:6.2f} s",
            flush=True,
        )

    original = load_weights(network("resnet20"), args.weights).eval()
    show("unquantized", original, None, 0.0)
    for name, method in ROWS.items():
        model = copy.deepcopy(original)
        batches = (
            calibration(data, CALIBRATION_IMAGES) if method.needs_calibration else None
        )
        start = time.process_time()
        packed = tersify.compress_(
            model, Recipe(rules=(Rule(methods=(method,)),)), calibration=batches
        )
        show(name, model, packed, time.process_time() - start)
    if args.train:
        model = copy.deepcopy(original)
        start = time.process_time()
        packed = short_training(model, data, args.train)
        show(
            f"trained {args.train} steps",
            model.eval(),
            packed,
            time.process_time() - start,
        )
    report(
        "lookup_resnet20",
        figures,
        json_path=args.json,
        versions={"torch": torch.__version__},
    )


if __name__ == "__main__":
    main()
