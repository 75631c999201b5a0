"""`tersify squeeze` on a pretrained CIFAR-10 ResNet at several prices of a bit, beside
`lut-4-sensitivity` with tables of several widths, `uniform-8`, and NNCodec with its own
quantization at several steps.

Of each kind the smallest file counts that keeps a drop on held-out training images. The
network was trained on these images, too, and knows them by heart: noise makes it as
unsure of them as its authors say it is of the test images. In every row batch norms
follow the new weights by the same images, and are saved as a factor and an addend of 8
bits.

usage: python benchmarks/squeeze.py --weights FILE.safetensors [--network resnet56]
       [--data-root DIR] [--noise 0.12] [--rows ROW ...] [--quick] [--json FILE]
`--rows` measures some rows, such as squeeze_0.001, lut_5 or nncodec_33, and keeps the
figures of the others in the JSON file.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common import report  # first: it sets what must stand before torch is imported

import nncodec_quantized  # isort: skip
import torch
from peers import peer_versions
from torch import Tensor, nn

import tersify
from tersify.calibration import Calibration
from tersify.lab import dataset, network, normalize
from tersify.lab.data import Data, Split
from tersify.lab.squeeze import noisy, squeezer_of
from tersify.lab.stored_networks import load_weights
from tersify.lab.trainer import evaluate
from tersify.norm_shifts import follow_, moments_of
from tersify.norms_in_few_bits import coarse_norms, folded
from tersify.tensor import CompressedModel
from tersify.tensor.model import load_state

IMAGES, QUICK_IMAGES = 512, 256
HELD_OUT, QUICK_HELD_OUT = 2000, 200
NORM_BITS = 8
Figures = dict[str, float]
ROWS = (
    "dense",
    "lut_3",
    "lut_4",
    "lut_5",
    "uniform_8",
    "squeeze_0.001",
    "squeeze_0.0015",
    "squeeze_0.002",
    "squeeze_0.003",
    "nncodec_20",
    "nncodec_22",
    "nncodec_24",
    "nncodec_26",
    "nncodec_28",
)


@dataclass(frozen=True, kw_only=True)
class Task:
    model: nn.Module
    data: Data
    images: int
    held_out: int
    noise: float
    quick: bool

    def accuracy(self, net: nn.Module, split: Split) -> float:
        cpu = torch.device("cpu")
        return evaluate(net, self.data, split, device=cpu, amp=False)["accuracy"]

    def scores(self, net: nn.Module, name: str) -> Figures:
        test = self.data.test[: self.held_out] if self.quick else self.data.test
        return {
            f"{name}_held_out": self.accuracy(net, self.held()),
            f"{name}_accuracy": self.accuracy(net, test),
        }

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


def size_of(packed: CompressedModel) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return float(tersify.save(packed, Path(folder) / "net.terse"))


def saved(name: str, task: Task, packed: CompressedModel) -> Figures:
    net = load_state(packed, copy.deepcopy(task.model)).eval()
    return {f"{name}_bytes": size_of(packed)} | task.scores(net, name)


def dense(task: Task) -> Figures:
    state = task.model.state_dict().values()
    size = float(sum(t.numel() * t.element_size() for t in state))
    return {"dense_bytes": size} | task.scores(task.model, "dense")


def by_recipe(task: Task, name: str, recipe: str, **settings: int) -> Figures:
    """With norms of few bits; `plain` is the file where they stay floats."""
    net = copy.deepcopy(task.model)
    packed = tersify.compress_(net, recipe, calibration=task.shown(8), **settings)
    plain = {f"{name}_plain_bytes": size_of(packed)}
    return plain | saved(name, task, coarse_norms(packed, net, NORM_BITS))


def by_nncodec(task: Task, name: str, qp: int) -> Figures:
    if nncodec_quantized.library() is None:
        print("nncodec: its package is not here")
        return {}
    net, size = _at(task, qp)
    return {f"{name}_bytes": float(size)} | task.scores(net, name)


@torch.no_grad()
def _at(task: Task, qp: int) -> tuple[nn.Module, int]:
    net = copy.deepcopy(task.model)
    batches = Calibration(task.shown(32))
    moments = moments_of(net, batches)
    weights = {n: p for n, p in net.named_parameters() if p.ndim > 1}
    for name, made in nncodec_quantized.coded(weights, qp)[0].items():
        weights[name].copy_(made)
    follow_(net, moments, batches)
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


def measured(task: Task, row: str) -> Figures:
    kind, _, setting = row.partition("_")
    if kind == "lut":
        return by_recipe(task, row, "lut-4-sensitivity", n=int(setting))
    if kind == "uniform":
        return by_recipe(task, row, "uniform-8")
    if kind == "squeeze":
        squeezer = squeezer_of(task.model, task.data, task.images)
        return saved(row, task, squeezer.at(float(setting)))
    if kind == "nncodec":
        return by_nncodec(task, row, -int(setting))
    return dense(task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--network", default="resnet56")
    parser.add_argument("--data-root", type=Path)
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
        noise=given.noise,
        quick=given.quick,
    )
    for row in given.rows:
        found = measured(task, row)
        for name, value in found.items():
            print(f"{name:28} {value:14,.3f}", flush=True)
        # read anew: another run may have measured other rows meanwhile
        figures = _earlier(given.json) | found | {"noise": given.noise}
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
