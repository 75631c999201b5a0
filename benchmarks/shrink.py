"""What `tersify.shrink` saves: a filter-pruned ResNet-18 masked, shrunk, and by
Torch-Pruning, side by side.

`python benchmarks/shrink.py [--quick] [--json FILE] [--network NAME] [--share 0.5]
[--side 224] [--threads N]` `python benchmarks/shrink.py --found FILE.terse [--side 32]`
a network that was pruned while it trained, instead

Two ways to choose the filters with the smallest L1 norm: `coupled` takes units that
meet in an addition together, `single` takes them layer by layer. Times are medians of
interleaved rounds on one batch; sizes are bytes on disk. Torch-Pruning (peer, where it
is installed) removes the same fraction of every layer by the same norm.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import report  # first: it sets what must stand before torch is imported
from torch import Tensor, nn

import tersify
from tersify.lab import network
from tersify.units import find_units

SEED = 0


def built(name: str, classes: int = 1000) -> nn.Module:
    """Random weights, and norms with statistics of their own, as a trained network has."""
    torch.manual_seed(SEED)
    model = network(name, classes=classes).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.1)
    return model


def smallest(norms: Tensor, fraction: float) -> Tensor:
    dead = torch.zeros(len(norms), dtype=torch.bool)
    dead[norms.argsort()[: int(fraction * len(norms))]] = True
    return dead


@torch.no_grad()
def mask_coupled(model: nn.Module, example: Tensor, fraction: float) -> None:
    """The units of every group with the smallest sum of L1 norms over the layers that
    make them.
    """
    weights = dict(model.named_parameters())
    for group in find_units(model, example):
        norms = torch.zeros(group.size)
        for member in group.producers:
            rows = weights[member.name].movedim(member.dim, 0).flatten(1).abs().sum(1)
            norms.index_add_(0, member.unit[member.unit >= 0], rows[member.unit >= 0])
        group.silence_(model, smallest(norms, fraction))


@torch.no_grad()
def mask_single(model: nn.Module, example: Tensor, fraction: float) -> None:
    """The filters of every convolution with the smallest L1 norm, whatever they are
    added to.
    """
    for conv, norm in norms_behind(model, example):
        dead = smallest(conv.weight.flatten(1).abs().sum(1), fraction)
        for tensor in (conv.weight, norm.weight, norm.bias):
            tensor[dead] = 0


def norms_behind(
    model: nn.Module, example: Tensor
) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Each convolution with the batch norm that is called right after it."""
    called: list[nn.Module] = []
    hooks = [
        m.register_forward_pre_hook(lambda m, args: called.append(m))
        for m in model.modules()
        if isinstance(m, nn.Conv2d | nn.BatchNorm2d)
    ]
    model(example)
    for hook in hooks:
        hook.remove()
    return [
        (a, b)
        for a, b in itertools.pairwise(called)
        if isinstance(a, nn.Conv2d) and isinstance(b, nn.BatchNorm2d)
    ]


def classes_of(file: Path) -> int:
    """As many as the last weight has rows."""
    return [tensor for tensor in tersify.open(file).values() if len(tensor.shape) == 2][
        -1
    ].shape[0]


def found_in(file: Path, name: str) -> nn.Module:
    """The network as the file holds it, silent units and all."""
    model = network(name, classes=classes_of(file))
    tersify.load(file, into=model)
    return model.eval()


def shrunk(
    way: str, masked: nn.Module, example: Tensor, figures: dict[str, float]
) -> dict[str, nn.Module]:
    """The masked network and the small one made of it; `figures` take what that cost
    and how far they differ.
    """
    start = time.perf_counter()
    small = tersify.shrink(masked, example)
    figures[f"{way}_shrink_seconds"] = time.perf_counter() - start
    with torch.inference_mode():
        wanted, got = masked(example), small(example)
    figures[f"{way}_max_relative_error"] = (
        (wanted - got).abs().max() / wanted.abs().max()
    ).item()
    return {f"{way}_shrunk": small, f"{way}_masked": masked}


def by_torch_pruning(
    model: nn.Module, example: Tensor, fraction: float
) -> nn.Module | None:
    try:
        import torch_pruning
    except ImportError:
        return None
    model = copy.deepcopy(model)
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1:]
    pruner = torch_pruning.pruner.MagnitudePruner(
        model,
        example,
        importance=torch_pruning.importance.MagnitudeImportance(p=1),
        pruning_ratio=fraction,
        ignored_layers=last,
    )
    pruner.step()
    return model


def file_bytes(model: nn.Module) -> int:
    with tempfile.TemporaryDirectory() as folder:
        tersify.save(model.state_dict(), Path(folder) / "model.terse")
        return (Path(folder) / "model.terse").stat().st_size


def medians(
    models: dict[str, nn.Module], example: Tensor, rounds: int
) -> dict[str, float]:
    """Milliseconds of one forward pass each, in turn, so that a busy neighbour meets
    all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in models}
    with torch.inference_mode():
        for i in range(rounds + 2):
            for name, model in models.items():
                start = time.perf_counter()
                model(example)
                if i >= 2:
                    times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small images, few rounds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument(
        "--found",
        type=Path,
        metavar="FILE.terse",
        help="a network that was pruned while it trained",
    )
    parser.add_argument("--side", type=int)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.found and not args.found.is_file():
        parser.error(f"--found takes a .terse file, and there is none at {args.found}")
    torch.set_num_threads(args.threads)
    side = args.side or (64 if args.quick else 224)
    example = torch.randn(1, 3, side, side)

    figures: dict[str, float] = {}
    if args.found:
        found = found_in(args.found, args.network)
        models = {"dense": built(args.network, classes_of(args.found))}
        models |= shrunk("found", found, example, figures)
        subject = f"{args.network} of {args.found.name}"
    else:
        dense = built(args.network)
        models = {"dense": dense}
        ways: dict[str, Callable[[nn.Module, Tensor, float], None]] = {
            "coupled": mask_coupled,
            "single": mask_single,
        }
        for way, mask_ in ways.items():
            masked = copy.deepcopy(dense)
            mask_(masked, example, args.fraction)
            models |= shrunk(way, masked, example, figures)
        peer = by_torch_pruning(dense, example, args.fraction)
        if peer is not None:
            models["torch_pruning"] = peer
        subject = f"{args.network}, {args.fraction:.0%} of the filters"

    taken = medians(models, example, 5 if args.quick else 30)
    print(f"{subject}, 1×3×{side}×{side}, {args.threads} thread(s)")
    print(
        f"{'':16}{'ms':>10}{'speed-up':>10}{'parameters':>14}{'bytes':>14}{'rel. error':>12}"
    )
    for name, model in models.items():
        count, size = sum(p.numel() for p in model.parameters()), file_bytes(model)
        error = (
            figures.get(f"{name.removesuffix('_shrunk')}_max_relative_error")
            if name.endswith("shrunk")
            else None
        )
        figures |= {
            f"{name}_ms": taken[name],
            f"{name}_speedup": taken["dense"] / taken[name],
        }
        figures |= {f"{name}_parameters": count, f"{name}_file_bytes": size}
        print(
            f"{name:16}{taken[name]:10.2f}{taken['dense'] / taken[name]:10.2f}{count:14,}{size:14,}"
            f"{'' if error is None else f'{error:12.1e}'}"
        )
    report(
        "shrink",
        figures,
        json_path=args.json,
        versions={"torch": torch.__version__},
        threads=args.threads,
        side=side,
    )


if __name__ == "__main__":
    main()
