"""tersify-run and the kernels built for other machines, under qemu: int8 has the bits of
the kernels here, whichever they are.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import machines
import numpy as np
import pytest
import torch
from plan_networks import networks, packed

import tersify
from tersify import codec
from tersify.runtime.portable import Replay, read_program

ALL_KERNELS = ("runtime/kernel_check", "-DTERSIFY_PLANS_ONLY=OFF")


def program_for(
    machine: str, target: str = "run/tersify-run", *options: str, name: str = ""
) -> list[str]:
    if lacking := machines.missing(machine):
        pytest.skip(f"not installed: {lacking}")
    return machines.program_for(machine, target, *options, name=name)


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param("aarch64", marks=pytest.mark.long),
        pytest.param("armhf", marks=pytest.mark.slow),
        pytest.param("riscv64", marks=pytest.mark.slow),
    ],
)
def test_another_machine_makes_the_bits_of_this_one(
    machine: str, tmp_path: Path
) -> None:
    command = program_for(machine)
    for name, (model, example) in networks().items():
        precision = "int8" if name == "ternary" else "fp32"
        path = tmp_path / f"{name}.terse"
        more = {
            "plan": precision,
            **({"calibration": example} if precision == "int8" else {}),
        }
        tersify.save(packed(model), path, network=model, example=example, **more)  # type: ignore[arg-type]
        np.save(tmp_path / "in.npy", example.numpy())
        subprocess.run(
            [*command, path, tmp_path / "in.npy", tmp_path / "out.npy"], check=True
        )
        file = codec.open(path)
        (wanted,) = Replay(read_program(file), file).run([example])
        made = torch.from_numpy(np.load(tmp_path / "out.npy"))
        if precision == "int8":
            assert torch.equal(made, wanted)
        else:
            assert float((made - wanted).abs().max()) <= 1e-5 * float(
                wanted.abs().max()
            )


def kernels_agree_on(cpu: str, command: list[str]) -> set[str]:
    """Runs the check under qemu; returns the instruction sets that it found."""
    emulator, program = command
    done = subprocess.run(
        [emulator, "-cpu", cpu, program, "--quick"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all kernels agree")
    return {line.split()[0] for line in done.stdout.splitlines()[:-1]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "isas"),
    [
        ("cortex-a72", {"portable"}),
        ("cortex-a76", {"portable", "dotprod", "neonfp16"}),
        ("max", {"portable", "dotprod", "i8mm", "neonfp16"}),
    ],
)
def test_kernels_of_arm_agree_and_only_those_of_the_cpu_run(
    cpu: str, isas: set[str]
) -> None:
    command = program_for("aarch64", *ALL_KERNELS, name="aarch64-all")
    assert kernels_agree_on(cpu, command) == isas


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "isas"),
    [
        ("rv64", {"portable"}),
        ("rv64,v=true,vlen=128", {"portable", "rvv"}),
        ("rv64,v=true,vlen=256", {"portable", "rvv"}),
    ],
)
def test_kernels_of_riscv_agree_and_only_those_of_the_cpu_run(
    cpu: str, isas: set[str]
) -> None:
    if shutil.which(machines.RISCV_CLANG) is None:
        pytest.skip(f"{machines.RISCV_CLANG} is not installed")
    command = program_for(
        "riscv64",
        "runtime/kernel_check",
        f"-DCMAKE_CXX_COMPILER={machines.RISCV_CLANG}",
        "-DCMAKE_CXX_COMPILER_TARGET=riscv64-linux-gnu",
        name="riscv64-vectors",
    )
    assert kernels_agree_on(cpu, command) == isas
