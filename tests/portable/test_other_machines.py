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

pytestmark = pytest.mark.long  # builds for other machines
ALL_KERNELS = ("runtime/kernel_check", "-DTERSIFY_PLANS_ONLY=OFF")


def program_for(
    machine: str, target: str = "run/tersify-run", *options: str, name: str = ""
) -> list[str]:
    if lacking := machines.missing(machine):
        pytest.skip(f"not installed: {lacking}")
    return machines.program_for(machine, target, *options, name=name)


@pytest.mark.parametrize("machine", machines.MACHINES)
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


def assert_kernels_agree(
    cpu: str, command: list[str], isas: set[str], checked: set[str], cases: int = 40
) -> None:
    """The CPU under qemu has these instruction sets, and the kernels of some agree with
    plain loops.
    """
    emulator, program = command
    asked = [emulator, "-cpu", cpu, program]
    named = subprocess.run([*asked, "--isas"], capture_output=True, text=True)
    assert set(named.stdout.split()) == isas
    done = subprocess.run(
        [*asked, "--quick", str(cases), *sorted(checked)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all kernels agree")
    assert {line.split()[0] for line in done.stdout.splitlines()[:-1]} == checked


@pytest.mark.parametrize(
    ("cpu", "isas", "checked"),
    [
        ("cortex-a72", {"neon"}, {"neon"}),
        ("cortex-a76", {"neon", "dotprod", "neonfp16"}, {"dotprod"}),
        ("max", {"neon", "dotprod", "i8mm", "neonfp16"}, {"i8mm"}),
        ("max", {"neon", "dotprod", "i8mm", "neonfp16"}, {"neonfp16"}),
    ],
)
def test_kernels_of_arm_agree_and_only_those_of_the_cpu_run(
    cpu: str, isas: set[str], checked: set[str]
) -> None:
    command = program_for("aarch64", *ALL_KERNELS, name="aarch64-all")
    assert_kernels_agree(cpu, command, isas, checked)


@pytest.mark.parametrize("machine", ["armhf", "riscv64"])
def test_portable_kernels_agree(machine: str) -> None:
    cpu = {"armhf": "max", "riscv64": "rv64"}[machine]
    command = program_for(machine, "runtime/kernel_check")
    assert_kernels_agree(cpu, command, {"portable"}, {"portable"})


@pytest.mark.parametrize("length", [128, 256])
def test_kernels_of_riscv_agree_and_only_those_of_the_cpu_run(length: int) -> None:
    if shutil.which(machines.RISCV_CLANG) is None:
        pytest.skip(f"{machines.RISCV_CLANG} is not installed")
    command = program_for(
        "riscv64",
        "runtime/kernel_check",
        f"-DCMAKE_CXX_COMPILER={machines.RISCV_CLANG}",
        "-DCMAKE_CXX_COMPILER_TARGET=riscv64-linux-gnu",
        name="riscv64-vectors",
    )
    cpu = f"rv64,v=true,vlen={length}"
    # qemu takes minutes for all cases: vectors of RISC-V are slow there
    assert_kernels_agree(cpu, command, {"portable", "rvv"}, {"rvv"}, cases=10)


def test_the_baseline_of_arm_is_called_neon_and_portable_means_the_same(
    tmp_path: Path,
) -> None:
    command = program_for("aarch64")
    model, example = networks()["ternary"]
    path = tmp_path / "net.terse"
    tersify.save(packed(model), path, network=model, example=example, plan="fp32")
    np.save(tmp_path / "in.npy", example.numpy())
    printed = [
        subprocess.run(
            [*command, path, tmp_path / "in.npy", "--isa", isa],
            capture_output=True,
            text=True,
            check=False,
        )
        for isa in ("neon", "portable", "sse2")
    ]
    assert [done.returncode for done in printed] == [0, 0, 1]
    assert printed[0].stdout == printed[1].stdout
    assert "it has: neon" in printed[2].stderr
