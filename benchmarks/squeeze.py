"""`tersify squeeze` on a pretrained CIFAR-10 ResNet beside `lut-4-sensitivity` with the
plain coder, and beside NNCodec with its own quantization.

The price of a bit and NNCodec's step are the coarsest that keep a drop on held-out
training images: once the drop that the table has there ("same"), once that of `--drop`.
The network was trained on these images, too, and knows them by heart: noise makes it as
unsure of them as its authors say it is of the test images. The 10,000 test images are
looked at once, at the end of each row.

usage: python benchmarks/squeeze.py --weights FILE.safetensors [--network resnet56]
       [--data-root DIR] [--drop 0.3] [--noise 0.12] [--rows ROW ...] [--quick] [--json FILE]
`--rows` measures some rows and keeps the figures of the others in the JSON file.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import report  # first: it sets what must stand before torch is imported

import nncodec_quantized  # isort: skip
import torch
from peers import peer_versions
from torch import Tensor, nn

import tersify
from tersify.batchnorm_statistics import recalibrate_
from tersify.calibration import Calibration
from tersify.lab import dataset, network, normalize
from tersify.lab.data import Data, Split
from tersify.lab.squeeze import noisy, squeeze
from tersify.lab.stored_networks import load_weights
from tersify.lab.trainer import evaluate
from tersify.norms_in_few_bits import folded
from tersify.tensor import CompressedModel
from tersify.tensor.model import load_state

IMAGES, QUICK_IMAGES = 768, 256
HELD_OUT, QUICK_HELD_OUT = 2000, 200
COARSEST_QP, FINEST_QP = -20, -44
Figures = dict[str, float]
ROWS = ("dense", "lut_4_sensitivity", "squeeze", "nncodec")


@dataclass(frozen=True, kw_only=True)
class Task:
    model: nn.Module
    data: Data
    images: int
    held_out: int
    drop: float
    noise: float
    quick: bool

    def accuracy(self, net: nn.Module, split: Split) -> float:
        cpu = torch.device("cpu")
        return evaluate(net, self.data, split, device=cpu, amp=False)["accuracy"]

    def tested(self, net: nn.Module) -> float:
        test = self.data.test[: self.held_out] if self.quick else self.data.test
        return self.accuracy(net, test)

    def held(self) -> Split:
        chosen = self.data.for_choosing().test[: self.held_out]
        return noisy(chosen, self.data, self.noise)

    def shown(self, batch: int) -> list[tuple[Tensor, Tensor]]:
        train = self.data.for_choosing().train
        order = torch.Generator().manual_seed(0)
        picked = torch.randperm(len(train), generator=order)[: self.images]
        return [
            (normalize(train.images[i], self.data), train.labels[i])
            for i in picked.split(batch)
        ]


def saved(name: str, task: Task, packed: CompressedModel) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        size = tersify.save(packed, Path(folder) / "net.terse")
    net = load_state(packed, copy.deepcopy(task.model)).eval()
    return {
        f"{name}_bytes": float(size),
        f"{name}_held_out": task.accuracy(net, task.held()),
        f"{name}_accuracy": task.tested(net),
    }


def dense(task: Task, figures: Figures) -> Figures:
    state = task.model.state_dict().values()
    return {
        "dense_bytes": float(sum(t.numel() * t.element_size() for t in state)),
        "dense_held_out": task.accuracy(task.model, task.held()),
        "dense_accuracy": task.tested(task.model),
    }


def table(task: Task, figures: Figures) -> Figures:
    net = copy.deepcopy(task.model)
    packed = tersify.compress_(net, "lut-4-sensitivity", calibration=task.shown(8))
    return saved("lut_4_sensitivity", task, packed)


def drops(task: Task, figures: Figures) -> dict[str, float]:
    """What may be lost on the held-out images, by the end of a row's name."""
    table, whole = (
        figures.get(f"{row}_held_out") for row in ("lut_4_sensitivity", "dense")
    )
    if table is None or whole is None:
        return {"": task.drop}
    return {"_same": max(whole - table, task.drop), "": task.drop}


def squeezed(task: Task, figures: Figures) -> Figures:
    made = {}
    for end, drop in drops(task, figures).items():
        found = squeeze(
            task.model,
            task.data,
            drop=drop,
            images=task.images,
            held_out=task.held_out,
            noise=task.noise,
            tell=print,
        )
        made |= saved(f"squeeze{end}", task, found.packed)
        made[f"squeeze{end}_price"] = found.price
    return made


def by_nncodec(task: Task, figures: Figures) -> Figures:
    """Batch norms are measured anew and folded, as in our file."""
    if nncodec_quantized.library() is None:
        print("nncodec: its package is not here")
        return {}
    held = task.held()
    before = task.accuracy(task.model, held)
    wanted = {end: before - drop for end, drop in drops(task, figures).items()}
    made: Figures = {}
    for qp in range(COARSEST_QP, FINEST_QP - 1, -1):
        net, size = _at(task, qp)
        score = task.accuracy(net, held)
        print(f"nncodec, qp {qp}: {size:,} bytes, {score:.2f} %", flush=True)
        for end in [end for end, least in wanted.items() if score >= least]:
            del wanted[end]
            made |= {
                f"nncodec{end}_bytes": float(size),
                f"nncodec{end}_held_out": score,
                f"nncodec{end}_accuracy": task.tested(net),
                f"nncodec{end}_qp": float(qp),
            }
        if not wanted:
            return made
    raise ValueError(f"NNCodec keeps the drop at no step up to qp {FINEST_QP}")


@torch.no_grad()
def _at(task: Task, qp: int) -> tuple[nn.Module, int]:
    net = copy.deepcopy(task.model)
    weights = {n: p for n, p in net.named_parameters() if p.ndim > 1}
    for name, made in nncodec_quantized.coded(weights, qp)[0].items():
        weights[name].copy_(made)
    recalibrate_(net, Calibration(task.shown(32)))
    given = {n: p.detach() for n, p in task.model.named_parameters() if p.ndim > 1}
    given |= {n: p for n, p in net.named_parameters() if n.endswith("linear.bias")}
    norms = {n: m for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    for name, norm in norms.items():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        parts = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        given[f"{name}.weight"], given[f"{name}.bias"] = folded(*parts, eps=norm.eps)
        norm.running_mean.zero_()
        norm.running_var.fill_(1 - norm.eps)
    back, size = nncodec_quantized.coded(given, qp)
    parameters = dict(net.named_parameters())
    for name, made in back.items():
        parameters[name].copy_(made)
    return net.eval(), size


MAKERS: dict[str, Callable[[Task, Figures], Figures]] = dict(
    zip(ROWS, (dense, table, squeezed, by_nncodec), strict=True)
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--network", default="resnet56")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--drop", type=float, default=0.3)
    parser.add_argument("--noise", type=float, default=0.12)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    task = Task(
        model=load_weights(network(given.network), given.weights).eval(),
        data=dataset("cifar10", root=given.data_root),
        images=QUICK_IMAGES if given.quick else IMAGES,
        held_out=QUICK_HELD_OUT if given.quick else HELD_OUT,
        drop=given.drop,
        noise=given.noise,
        quick=given.quick,
    )
    figures: Figures = {}
    for row in given.rows:
        figures |= _earlier(given.json)
        found = MAKERS[row](task, figures)
        for name, value in found.items():
            print(f"{name:28} {value:14,.3f}", flush=True)
        figures |= found | {"drop": given.drop, "noise": given.noise}
        versions = {"torch": torch.__version__, **peer_versions()}
        report("squeeze", figures, json_path=given.json, versions=versions)


def _earlier(path: Path | None) -> Figures:
    """Figures of rows that were measured before."""
    if path is None or not path.is_file():
        return {}
    found: Figures = json.loads(path.read_text())["figures"]
    return found


if __name__ == "__main__":
    main()
