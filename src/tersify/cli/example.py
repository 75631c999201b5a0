"""The real network that comes with Tersify, for the end of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def example_file() -> Path | None:
    """Inside the package when installed, beside src in a checkout."""
    here = Path(__file__).parent.parent
    candidates = (
        here / "examples" / "resnet20-star.terse",
        here.parent.parent / "examples" / "resnet20-star.terse",
    )
    return next((path for path in candidates if path.is_file()), None)


def show_example(console: Console) -> None:
    """Size and recorded accuracy of the network in the file, and its speed as measured
    here and now.
    """
    from tersify import codec
    from tersify.cli.bench import speed_table
    from tersify.cli.common import network_and_input
    from tersify.cpus import busy
    from tersify.runtime.benchmark import bench

    path = example_file()
    if path is None:
        return
    stored = codec.open(path)
    found = stored.metadata["measured"]
    facts = codec.inspect(path)
    console.print(
        f"\nA real network: ResNet-20*, {facts['weights'] / 1e6:.1f} M parameters, {found['accuracy']:.2f} % on the "
        f"{found['images']:,} test images of CIFAR-10,\n{facts['sparsity']:.1f} % zeros, {path.stat().st_size:,} bytes "
        f"with everything in it: {facts['dense_bytes'] / path.stat().st_size:.1f} times smaller than fp32.\n"
        "Its speed on one core of this machine, beside PyTorch:",
        highlight=False,
    )
    # One thread: a busy neighbour slows PyTorch's two threads down many times, and the
    # ratio would flatter us.
    errors: dict[str, float] = {}
    network, images = network_and_input(path, None, None, None, None, batch=8)
    rows = bench(
        network,
        images,
        peers=["torch", "tersify"],
        batches=[1, 8],
        threads=1,
        rounds=3,
        errors=errors,
    )
    console.print(speed_table(rows, errors))
    if told := busy():
        console.print(told, highlight=False, soft_wrap=True)
    console.print(
        f"tersify inspect {path}\ntersify bench {path}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
