"""NaN and infinities meet zeros as in torch; memory stays bounded over sizes; no
private name of torch is needed.
"""

from __future__ import annotations

import ast
import ctypes
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from against_torch import check, thinned_
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")

SOURCES = Path(__file__).parents[2] / "src" / "tersify"
PLACES: list[tuple[int, ...]] = [(0, 0), (1, 5)]


def linear() -> tuple[nn.Module, Tensor]:
    return nn.Linear(32, 40), torch.randn(3, 32)


def conv_1d() -> tuple[nn.Module, Tensor]:
    return nn.Conv1d(12, 16, 3, padding=1), torch.randn(3, 12, 14)


def conv_2d() -> tuple[nn.Module, Tensor]:
    return nn.Conv2d(12, 16, 3, padding=1), torch.randn(3, 12, 9, 8)


def pointwise() -> tuple[nn.Module, Tensor]:
    return nn.Conv2d(12, 16, 1), torch.randn(3, 12, 9, 8)


def depthwise() -> tuple[nn.Module, Tensor]:
    return nn.Conv2d(12, 12, 3, groups=12), torch.randn(3, 12, 9, 8)


def network() -> tuple[nn.Module, Tensor]:
    layers = nn.Sequential(
        nn.Conv2d(12, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 9, 10),
    )
    return layers, torch.randn(3, 12, 9, 8)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("ternary", [False, True])
@pytest.mark.parametrize(
    "made", [linear, conv_1d, conv_2d, pointwise, depthwise, network]
)
def test_zero_times_infinity_and_nan_spread_as_in_torch(made, ternary, value, isa):
    model, x = made()
    thinned_(model, 0.9, ternary=ternary).eval()
    fast = compile(model, x)
    for place in PLACES:
        shown = torch.randn_like(x)
        shown[place] = value
        check(fast, model, shown)
    check(fast, model, x)


def test_alternating_batch_sizes_and_shapes_never_mix():
    model = nn.Sequential(
        nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 4, 3)
    ).eval()
    fast = compile(model, torch.randn(2, 3, 16))
    shown = {
        size: torch.randn(*size)
        for size in [(1, 3, 16), (2, 3, 16), (7, 3, 16), (2, 3, 9)]
    }
    for _ in range(4):
        for x in shown.values():
            assert check(fast, model, x) <= 2e-5


def test_a_result_is_not_written_over_by_the_next_call():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval()
    fast = compile(model, torch.randn(2, 6))
    first = fast(torch.randn(2, 6))
    kept = first.clone()
    for batch in (2, 2, 3):
        fast(torch.randn(batch, 6))
    assert torch.equal(first, kept)


GROWTH = """
import ctypes, torch
from torch import nn
from tersify.runtime import compile
class Memory(ctypes.Structure):
    names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "in_use", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in names]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Memory
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(30)]).eval()
fast = compile(model, torch.randn(2, 8, 4), threads=1)
def used_kb():
    return libc.mallinfo2().in_use // 1024
def sized(n):
    return {sizes}
for n in range(1, {first}):
    fast(sized(n))
before = used_kb()
for n in range({first}, {last}):
    fast(sized(n))
print((used_kb() - before) / ({last} - {first}))
"""
BATCHES, LENGTHS = "torch.randn(n, 8, 4)", "torch.randn(1, 8, 4 + n)"


def grown_kb(sizes: str, first: int, last: int, network: str = "fast") -> float:
    """How much memory a size costs that was never seen before, on average, in a process
    of its own.
    """
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip(
            "needs glibc's account of the memory in use; torch's leavings keep pages from being given back"
        )
    script = GROWTH.format(sizes=sizes, first=first, last=last).replace(
        "fast(sized(n))", f"{network}(sized(n))"
    )
    # Torch itself keeps a primitive for every size it has seen; ours is what this looks
    # for.
    env = {**os.environ, "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def more_than_torch_kb(sizes: str, first: int, last: int) -> float:
    """Torch itself keeps some memory for every size it has seen, and a capture is one
    plain call.
    """
    return grown_kb(sizes, first, last) - grown_kb(sizes, first, last, network="model")


@pytest.mark.parametrize("sizes", [BATCHES, LENGTHS])
def test_memory_does_not_grow_with_the_sizes_seen(sizes):
    assert more_than_torch_kb(sizes, 150, 300) < 16


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [BATCHES, LENGTHS])
def test_memory_does_not_grow_over_a_thousand_sizes(sizes):
    assert more_than_torch_kb(sizes, 300, 1300) < 8


def test_memory_does_not_grow_with_the_networks_compiled():
    script = GROWTH.replace(
        "fast(sized(n))", "compile(model, sized(4), threads=1)(sized(4))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script.format(sizes=BATCHES, first=40, last=120)],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100


def private_names(path: Path) -> list[str]:
    """Private names of torch that the file needs to be imported, with their lines;
    those in a `try` may be absent.
    """
    found: list[str] = []

    def attribute(node: ast.Attribute) -> list[str]:
        inner = node.value
        parts = (
            attribute(inner)
            if isinstance(inner, ast.Attribute)
            else [getattr(inner, "id", "")]
        )
        return [*parts, node.attr]

    def is_private(parts: list[str]) -> bool:
        return parts[0].startswith("torch") and any(
            p.startswith("_") and not p.startswith("__") for p in parts
        )

    def visit(node: ast.AST) -> None:
        if isinstance(
            node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Try)
        ):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        names: list[list[str]] = []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [
                [*(node.module or "").split("."), alias.name] for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [attribute(node)]
        found.extend(
            f"{path.name}:{node.lineno} {'.'.join(n)}" for n in names if is_private(n)
        )  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def test_no_private_name_of_torch_is_needed_to_import_the_runtime():
    needed = [
        name
        for path in sorted((SOURCES / "runtime").rglob("*.py"))
        for name in private_names(path)
    ]
    assert needed == []
