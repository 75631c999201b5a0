"""Layers that people have beside those the headline was tuned on, against ONNX Runtime
and eager torch on one thread.

`python benchmarks/dense_engines.py [--quick] [--json FILE] [--only NAME ...]`

A CIFAR ResNet-32 with option-A shortcuts and a MiniLM encoder, both with 4-bit tables
(recipe lut-4), and three LSTM layers with nine tenths of zeros, each on one item. All
engines take turns in one process; times are CPU times of the process, so that other
work on the machine counts less. ONNX Runtime's int8 is what its documents advise:
static with calibration for convolutions, dynamic for encoders.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# first: it sets what must stand before torch is imported
from common import interleaved, own_warnings_alone, report
from engines import onnx_session
from networks_of_others import minilm
from zoo_data import sentences

Works = dict[str, Callable[[], Any]]
ROUNDS, REPEATS, WARM = 15, 10, 5
DATA = Path(__file__).parents[2] / "shared" / "data"
TOKENS, FRAMES = 128, 160


def engines(model: Any, x: Any, *, int8: str) -> Works:
    import tersify

    compiled = {
        p: tersify.compile(model, x, precision=p, threads=1) for p in ("fp32", "int8")
    }
    return {
        "torch": lambda: model(x),
        "onnxruntime": onnx_session(model, x),
        "onnxruntime-int8": onnx_session(model, x, int8=int8),
        "tersify": lambda: compiled["fp32"](x),
        "tersify-int8": lambda: compiled["int8"](x),
    }


def resnet32() -> Works:
    import torch

    import tersify
    from tersify.lab import network

    model = network("resnet32").eval()
    tersify.compress_(model, "lut-4")
    return engines(model, torch.rand(1, 3, 32, 32), int8="static")


def encoder() -> Works:
    import torch

    import tersify
    from tersify.lab import network

    model = network("minilm").eval()
    weights = minilm()
    if weights is not None:
        model.load_state_dict(weights, strict=False)
    tersify.compress_(model, "lut-4")
    words = sentences(DATA, 1, TOKENS)
    if words is None:
        words = torch.randint(1, 30000, (1, TOKENS))
    return engines(model, words, int8="dynamic")


def listener() -> Works:
    import torch
    from torch import Tensor, nn

    import tersify

    class Listener(nn.Module):
        """The shape of a speaker encoder: mel bands → the last state of three layers →
        an embedding.
        """

        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
            self.linear = nn.Linear(256, 256)

        def forward(self, x: Tensor) -> Tensor:
            _, (last, _) = self.lstm(x)
            return self.linear(last[-1]).relu()

    model = Listener().eval()
    for weight in model.parameters():
        if weight.ndim == 2:
            weight.data *= torch.rand_like(weight) < 0.1
    x = torch.rand(1, FRAMES, 40)
    compiled = tersify.compile(model, x, threads=1)
    return {
        "torch": lambda: model(x),
        "onnxruntime": onnx_session(model, x),
        "tersify": lambda: compiled(x),
    }


NETWORKS: dict[str, Callable[[], Works]] = {
    "resnet32": resnet32,
    "minilm": encoder,
    "lstm": listener,
}


def ratios(times: dict[str, list[float]]) -> Iterator[tuple[str, float]]:
    """How many times faster ours is than each other engine: medians over rounds, in
    each of which all were timed.
    """
    for ours in (name for name in times if name.startswith("tersify")):
        for theirs in (name for name in times if not name.startswith("tersify")):
            pairs = zip(times[theirs], times[ours], strict=True)
            yield f"{ours}_against_{theirs}", statistics.median(a / b for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    options = parser.parse_args()
    import onnxruntime
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    own_warnings_alone()
    figures: dict[str, float] = {}
    for name in options.only:
        with torch.no_grad():
            works = NETWORKS[name]()
            rounds = 3 if options.quick else ROUNDS
            times = interleaved(
                works,
                rounds=rounds,
                repeats=REPEATS,
                warm=WARM,
                clock=time.process_time,
            )
        for engine, spent in times.items():
            figures[f"{name}.{engine}_ms"] = statistics.median(spent)
            print(f"{name:10} {engine:18} {statistics.median(spent):8.3f} ms")
        for what, ratio in ratios(times):
            figures[f"{name}.{what}"] = ratio
            print(f"{name:10} {what}: {ratio:.2f}")
    versions = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}
    report(
        "dense-engines", figures, json_path=options.json, versions=versions, threads=1
    )


if __name__ == "__main__":
    main()
