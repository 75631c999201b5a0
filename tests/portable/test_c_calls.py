"""Calls of a plan that C has kernels for: each network natively compiled, beside the
runtime, in fp32 and in int8.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import microcontroller
import numpy as np
import pytest
import torch
from plan_networks import networks, packed, ternary_
from ternary_networks import ternary_networks
from test_c_source import SANITIZED, STRICT
from torch import Tensor, nn
from torch.nn import functional as F

from tersify.export.c import export_c
from tersify.runtime.portable import Program, Replay, lowered
from tersify.tensor import CompressedModel


class TwoInputs(nn.Module):
    """Ids and floats go in, a sum and the ids' vectors come out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 12)
        self.steps = nn.Linear(12, 8)
        self.beside = nn.Linear(5, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        steps = F.leaky_relu(self.steps(self.words(ids)), 0.2)
        made = steps.mean(1) + F.hardswish(self.beside(x))
        return self.head(made), steps


class Twice(nn.Module):
    """An output that is the input, and one that is given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made = torch.relu(self.layer(x))
        return made, x.view(-1, 2, 3), made, made * x


class Constants(nn.Module):
    """Places are added to steps, and gains multiply them."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(7, 6))
        self.gains = nn.Parameter(torch.rand(7, 6))
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x + self.places) * self.gains)


class Normed(nn.Module):
    """A sum with another value stands between two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)
        self.before, self.behind = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        for norm in (self.before, self.behind):
            norm.running_mean.uniform_(-0.2, 0.2)  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        made = F.max_pool2d(self.first(x), 2)
        other = F.max_pool2d(self.second(x), 2)
        return F.leaky_relu(self.behind(self.before(made) + other), 0.1)


IDS = torch.randint(0, 30, (11, 9), generator=torch.Generator().manual_seed(3))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


# what has norms takes roots, which no kernel in C does
TERNARY = {
    name: made for name, made in ternary_networks().items() if "normed" not in name
}


def cases() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    torch.manual_seed(5)
    made = {
        name: (model, (random(11, *shape),)) for name, (model, shape) in TERNARY.items()
    }
    raising, images = networks()["raises"]
    return {
        **made,
        "raises": (raising, (random(11, *images.shape[1:]),)),
        "two inputs": (TwoInputs(), (IDS, random(11, 5))),
        "words of signs": (ternary_(TwoInputs()), (IDS, random(11, 5))),
        "twice": (Twice(), (random(11, 6),)),
        "constants": (Constants(), (random(11, 7, 6),)),
        "between scales": (Normed(), (random(11, 3, 10, 10),)),
        "steps of a layer": (
            nn.Sequential(nn.Linear(6, 5), nn.ReLU()),
            (random(11, 4, 6),),
        ),
    }


CASES = cases()


def made_in_c(
    folder: Path, inputs: tuple[Tensor, ...], counts: list[int]
) -> list[np.ndarray]:
    """What the source makes, one array for each output."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "a C compiler is needed"
    command = [compiler, *STRICT, *SANITIZED, "stream.c", "network.c", "-o", "stream"]
    subprocess.run(command, cwd=folder, check=True)
    rows = [
        (x if x.is_floating_point() else x.to(torch.int32)).reshape(len(x), -1).numpy()
        for x in inputs
    ]
    given = b"".join(row.tobytes() for each in zip(*rows, strict=True) for row in each)
    done = subprocess.run(
        [folder / "stream"], input=given, capture_output=True, check=True
    )
    whole = np.frombuffer(done.stdout, np.float32).reshape(-1, sum(counts))
    return np.split(whole, np.cumsum(counts)[:-1], axis=1)


BOTH = [(name, "fp32") for name in CASES] + [(name, "int8") for name in TERNARY]


@pytest.mark.parametrize(("name", "precision"), BOTH)
def test_c_makes_what_the_runtime_makes(
    name: str, precision: str, tmp_path: Path
) -> None:
    model, inputs = CASES[name]
    model.eval()
    tensors, program = plan_of(model, inputs, precision)
    export_c(program, tensors, tmp_path / "c", vectors=2)
    wanted = [
        x.reshape(len(x), -1).numpy()
        for x in Replay(program, tensors).run(list(inputs))
    ]
    made = made_in_c(tmp_path / "c", inputs, [x.shape[1] for x in wanted])
    for own, other in zip(made, wanted, strict=True):
        if precision == "int8":
            assert np.array_equal(own, other)
        assert np.abs(own - other).max() <= 1e-5 * np.abs(other).max()
    done = subprocess.run(
        ["make", "test"], cwd=tmp_path / "c", capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout


def plan_of(
    model: nn.Module, inputs: tuple[Tensor, ...], precision: str
) -> tuple[CompressedModel, Program]:
    tensors = packed(model)
    example = tuple(x[:2] for x in inputs)
    calibration = [inputs] if precision == "int8" else None
    return tensors, lowered(
        model, example, tensors, precision=precision, calibration=calibration
    )


@pytest.mark.parametrize("name", ["pooled", "few zeros", "two inputs"])
def test_the_header_states_all_the_memory_that_the_source_takes(
    name: str, tmp_path: Path
) -> None:
    precision = "int8" if name in TERNARY else "fp32"
    tensors, program = plan_of(*CASES[name], precision)
    told = export_c(program, tensors, tmp_path / "c")
    header = (tmp_path / "c" / "network.h").read_text()
    (stated,) = re.findall(r"#define NETWORK_RAM_BYTES (\d+)", header)
    assert told["ram_bytes"] == int(stated)
    subprocess.run(
        ["cc", "-std=c99", "-O2", "-fno-pic", "-c", "network.c"],
        cwd=tmp_path / "c",
        check=True,
    )
    listed = subprocess.run(
        ["nm", "-S", "network.o"],
        cwd=tmp_path / "c",
        capture_output=True,
        text=True,
        check=True,
    )
    held = re.findall(r"^\w+ (\w+) [bBdD] ", listed.stdout, re.MULTILINE)
    assert sum(int(size, 16) for size in held) == int(stated)


def test_a_number_of_no_row_reads_nothing_behind_the_table(tmp_path: Path) -> None:
    model, inputs = CASES["two inputs"]
    tensors, program = plan_of(model, inputs, "fp32")
    export_c(program, tensors, tmp_path / "c")
    assert "NETWORK_INPUT0_ROWS 30" in (tmp_path / "c" / "network.h").read_text()
    wrong = torch.full_like(IDS, 30)
    wrong[:, 0] = -1
    made = made_in_c(tmp_path / "c", (wrong, inputs[1]), [4, 72])
    assert np.isfinite(made[1]).all()


@pytest.mark.parametrize("name", ["joined", "gated", "leaky", "sloped", "hard swish"])
def test_a_microcontroller_has_the_same_bits(name: str, tmp_path: Path) -> None:
    if lacking := microcontroller.missing():
        pytest.skip(f"not installed: {lacking}")
    tensors, program = plan_of(*CASES[name], "int8")
    export_c(program, tensors, tmp_path / "c", vectors=3)
    assert microcontroller.verdict(tmp_path / "c", "cortex-m0") == "same bits"


def test_a_plan_that_is_not_as_the_format_says_is_told_in_one_sentence(
    tmp_path: Path,
) -> None:
    tensors, program = plan_of(*CASES["joined"], "fp32")
    for calls in ([*program.calls[:1], ["made"]], [["conv", 0]], [["view", 7, 1, [1]]]):
        broken = replace(program, calls=tuple(calls))
        with pytest.raises(ValueError, match=r"no kernel in C|not as docs"):
            export_c(broken, tensors, tmp_path / "c")
