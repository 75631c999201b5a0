"""What a plan and its export say of themselves is true."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from plan_networks import packed
from torch import nn

from tersify.export.c import export_c
from tersify.runtime.portable import lowered


ACTIVATIONS = {
    "leaky ReLU": nn.LeakyReLU(0.1),
    "GELU": nn.GELU(),
    "SiLU": nn.SiLU(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "hard swish": nn.Hardswish(),
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
