"""What a plan and its export say of themselves is true."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from plan_networks import packed, ternary_
from torch import nn
from typer.testing import CliRunner

import tersify
from tersify import codec
from tersify.cli.app import app
from tersify.export.c import export_c
from tersify.runtime.portable import lowered, read_program


def digits(*, signs: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )
    return (ternary_(model) if signs else model).eval()


@pytest.mark.parametrize(("signs", "wanted"), [(True, "int8"), (False, "fp32")])
def test_a_plan_in_which_nothing_is_rounded_is_called_fp32(
    signs: bool, wanted: str, tmp_path: Path
) -> None:
    model, path = digits(signs=signs), tmp_path / "net.terse"
    images = torch.randn(4, 1, 8, 8)
    with nullcontext() if signs else pytest.warns(RuntimeWarning, match="nothing"):
        tersify.save(
            packed(model),
            path,
            network=model,
            example=images,
            plan="int8",
            calibration=images,
        )
    program = read_program(codec.open(path))
    assert program.precision == wanted
    assert ("quantize" in {call[0] for call in program.calls}) == signs


@pytest.mark.parametrize("signs", [True, False])
def test_the_command_says_what_became_of_int8(signs: bool, tmp_path: Path) -> None:
    model = digits(signs=signs)
    path, out = tmp_path / "net.terse", tmp_path / "plan.terse"
    tersify.save(packed(model), path, network=model, example=torch.randn(2, 1, 8, 8))
    given = ["plan", str(path), "--out", str(out), "--data", "digits"]
    with nullcontext() if signs else pytest.warns(RuntimeWarning, match="nothing"):
        done = CliRunner().invoke(app, [*given, "--precision", "int8"])
    assert done.exit_code == 0, done.output
    assert ("calls in int8" if signs else "calls in fp32") in done.output
    assert read_program(codec.open(out)).precision == ("int8" if signs else "fp32")


ACTIVATIONS = {
    "GELU": nn.GELU(),
    "SiLU": nn.SiLU(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_without_a_kernel_in_c_is_called_by_its_name(
    name: str, tmp_path: Path
) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), ACTIVATIONS[name], nn.Flatten(), nn.Linear(600, 4)
    )
    model, x = model.eval(), torch.randn(2, 3, 12, 12)
    program = lowered(model, x, packed(model))
    with pytest.raises(ValueError, match=rf"^{name} has no kernel in C"):
        export_c(program, packed(model), tmp_path / "c")


def test_an_error_of_a_file_that_knows_its_network_names_no_inner_class(
    tmp_path: Path,
) -> None:
    path = tmp_path / "net.terse"
    model = nn.Sequential(nn.Linear(6, 3)).eval()
    tersify.save(packed(model), path, network=model, example=torch.randn(2, 6))
    loaded = tersify.load(path)
    with pytest.raises(ValueError, match="GraphNetwork does not take an input of 2×7"):
        lowered(loaded, torch.randn(2, 7), packed(loaded))
