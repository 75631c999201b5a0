"""`tersify export c`: a C99 source that makes what the runtime makes, natively
compiled.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import microcontroller
import numpy as np
import pytest
import torch
from plan_networks import Block, little_cnn, networks, packed, seeded
from ternary_networks import ternary_networks
from torch import nn

import tersify
from tersify.export.c import export_c
from tersify.export.c.stored import BYTES, FLOATS, GAPS, NIBBLES, TRITS, stored
from tersify.runtime.portable import Replay, lowered

NETWORKS = networks()
SAME_BITS = [name for name in ternary_networks() if "normed" not in name]
STRICT = [
    "-std=c99",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pedantic",
    "-ffp-contract=off",
]
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def outputs_in_c(folder: Path, given: torch.Tensor, outputs: int) -> np.ndarray:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "a C compiler is needed"
    subprocess.run(
        [compiler, *STRICT, *SANITIZED, "stream.c", "network.c", "-o", "stream"],
        cwd=folder,
        check=True,
    )
    made = subprocess.run(
        [folder / "stream"],
        input=given.numpy().tobytes(),
        capture_output=True,
        check=True,
    )
    return np.frombuffer(made.stdout, np.float32).reshape(-1, outputs)


@pytest.mark.parametrize(
    ("name", "precision"), [("ternary", "fp32"), ("ternary", "int8"), ("dense", "fp32")]
)
def test_the_source_makes_what_the_kernels_make(
    name: str, precision: str, tmp_path: Path
) -> None:
    model, images = NETWORKS[name]
    tensors = packed(model)
    program = lowered(
        model,
        images,
        tensors,
        precision=precision,
        calibration=images if precision == "int8" else None,
    )
    export_c(program, tensors, tmp_path / "c")
    given = torch.randn(
        16, *images.shape[1:], generator=torch.Generator().manual_seed(5)
    )
    (wanted,) = Replay(program, tensors).run([given])
    made = outputs_in_c(tmp_path / "c", given, wanted.shape[1])
    if precision == "int8":
        assert np.array_equal(made, wanted.numpy())
        return
    assert float(np.abs(made - wanted.numpy()).max()) <= 1e-5 * float(
        wanted.abs().max()
    )


@pytest.mark.parametrize("name", SAME_BITS)
def test_int8_has_the_bits_of_the_kernels_and_of_its_golden_vectors(
    name: str, tmp_path: Path
) -> None:
    model, shape = ternary_networks()[name]
    given = torch.randn(19, *shape, generator=torch.Generator().manual_seed(5))
    tensors = packed(model)
    program = lowered(model, given[:2], tensors, precision="int8", calibration=given)
    export_c(program, tensors, tmp_path / "c", vectors=2)
    (wanted,) = Replay(program, tensors).run([given])
    wanted = wanted.reshape(len(given), -1)
    made = outputs_in_c(tmp_path / "c", given, wanted.shape[1])
    assert np.array_equal(made, wanted.numpy())
    assert golden(tmp_path / "c").returncode == 0
    vectors = tmp_path / "c" / "golden.h"
    vectors.write_text(FIRST_OUTPUT.sub(_next, vectors.read_text()))
    assert golden(tmp_path / "c").returncode != 0


FIRST_OUTPUT = re.compile(r"(?<=golden_output0)([^=]*= {\n{)([^,}]*)")


def _next(found: re.Match[str]) -> str:
    """The same with the float behind it."""
    return f"{found[1]}{np.nextafter(np.float32(found[2]), np.float32(9)):.9g}"


def golden(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "test"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_golden_vectors_pass_by_make(tmp_path: Path) -> None:
    model, images = NETWORKS["ternary"]
    tensors = packed(model)
    export_c(
        lowered(model, images, tensors),
        tensors,
        tmp_path / "c",
        name="little",
        vectors=3,
    )
    made = subprocess.run(
        ["make", "test"], cwd=tmp_path / "c", capture_output=True, text=True, check=True
    )
    assert "3 golden vectors" in made.stdout


@pytest.mark.parametrize("name", ["golden", "stream"])
def test_a_network_takes_no_name_of_the_folders_other_files(
    name: str, tmp_path: Path
) -> None:
    model, images = NETWORKS["ternary"]
    tensors = packed(model)
    with pytest.raises(ValueError, match="another name"):
        export_c(lowered(model, images, tensors), tensors, tmp_path / "c", name=name)
    assert not (tmp_path / "c").exists()


def test_a_pool_and_a_residual_share_one_arena(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(150, 4)
    ).eval()
    images = torch.randn(2, 3, 12, 12)
    tensors = packed(model)
    program = lowered(model, images, tensors)
    export_c(program, tensors, tmp_path / "c")
    (wanted,) = Replay(program, tensors).run([images])
    assert np.allclose(
        outputs_in_c(tmp_path / "c", images, 4), wanted.numpy(), atol=1e-5
    )


def test_an_averaged_network_with_an_int8_linear_layer_is_the_runtimes(
    tmp_path: Path,
) -> None:
    model, images = (
        little_cnn(),
        torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(1)),
    )
    tensors = packed(model)
    program = lowered(model, images[:2], tensors, precision="int8", calibration=images)
    assert {"avg_pool", "linear_i8"} <= {call[0] for call in program.calls}
    export_c(program, tensors, tmp_path / "c")
    (wanted,) = Replay(program, tensors).run([images])
    assert np.array_equal(outputs_in_c(tmp_path / "c", images, 4), wanted.numpy())


def test_what_has_no_kernel_in_c_is_named(tmp_path: Path) -> None:
    model, x = NETWORKS["attention"]
    with pytest.raises(ValueError, match="has no kernel in C"):
        export_c(lowered(model, x, packed(model)), packed(model), tmp_path / "c")


def test_each_layer_takes_the_smallest_form() -> None:
    rng = np.random.default_rng(0)
    sparse = np.where(rng.random((4, 4000)) < 0.02, 1, 0).astype(np.float32)
    dense = rng.integers(-1, 2, (4, 400)).astype(np.float32)
    assert stored(sparse).form == GAPS
    assert stored(dense).form == TRITS
    assert stored(dense * 0.5).form == NIBBLES
    assert stored(rng.standard_normal((4, 40)).astype(np.float32)).form == FLOATS
    assert stored(np.arange(40, dtype=np.float32)[None], whole=True).form == BYTES


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_layers_of_few_levels_are_places_in_a_table(
    precision: str, tmp_path: Path
) -> None:
    model, images = seeded(Block), torch.randn(4, 3, 12, 12)
    tensors = tersify.compress_(model, "lut-4")
    program = lowered(
        model,
        images,
        tensors,
        precision=precision,
        calibration=images if precision == "int8" else None,
    )
    whole = "conv_codes" in {call[0] for call in program.calls}
    assert whole == (precision == "int8")
    export_c(program, tensors, tmp_path / "c")
    assert f".form = {NIBBLES}," in (tmp_path / "c" / "network.c").read_text()
    (wanted,) = Replay(program, tensors).run([images])
    made = outputs_in_c(tmp_path / "c", images, wanted.shape[1])
    apart = float(np.abs(made - wanted.numpy()).max())
    assert apart <= 1e-5 * float(wanted.abs().max())


@pytest.mark.parametrize("core", ["cortex-m0", "cortex-m4", "cortex-m33"])
def test_the_source_compiles_for_a_microcontroller(core: str, tmp_path: Path) -> None:
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("arm-none-eabi-gcc is not installed (gcc-arm-none-eabi)")
    model, images = NETWORKS["ternary"]
    tensors = packed(model)
    export_c(
        lowered(model, images, tensors, precision="int8", calibration=images),
        tensors,
        tmp_path / "c",
    )
    given = f"arm-none-eabi-gcc -O2 -std=c99 -Werror -Wall -mthumb -mcpu={core} -c network.c -o network.o"
    subprocess.run(given.split(), cwd=tmp_path / "c", check=True)


@pytest.mark.parametrize(
    ("core", "precision"),
    [("cortex-m4", "fp32"), *((core, "int8") for core in microcontroller.BOARDS)],
)
def test_a_microcontroller_makes_the_golden_vectors(
    core: str, precision: str, tmp_path: Path
) -> None:
    if lacking := microcontroller.missing():
        pytest.skip(f"not installed: {lacking}")
    model, images = NETWORKS["ternary"]
    tensors = packed(model)
    program = lowered(
        model,
        images,
        tensors,
        precision=precision,
        calibration=images if precision == "int8" else None,
    )
    export_c(program, tensors, tmp_path / "c", vectors=3)
    told = microcontroller.verdict(tmp_path / "c", core)
    assert told == "same bits" or (precision == "fp32" and told == "same")
