"""tersify-run built for other machines, under qemu: int8 has the bits of the kernels
here, whichever they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from library import ROOT
from plan_networks import networks, packed

import tersify
from tersify import codec
from tersify.runtime.portable import Replay, read_program

MACHINES = {
    "aarch64": ("aarch64-linux-gnu", "qemu-aarch64-static"),
    "armhf": ("arm-linux-gnueabihf", "qemu-arm-static"),
    "riscv64": ("riscv64-linux-gnu", "qemu-riscv64-static"),
}
ZSTD = "TERSIFY_ZSTD_SOURCE"


def program_for(machine: str, target: str = "run/tersify-run") -> list[str]:
    """The command that runs a program as built for the machine."""
    compiler, emulator = MACHINES[machine]
    for program in (f"{compiler}-g++", emulator, "cmake", "ninja"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if ZSTD not in os.environ:
        pytest.skip(f"{ZSTD} names no folder with zstd.c and zstd.h")
    build = ROOT / "build" / machine
    given = [
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(build),
        "-G",
        "Ninja",
        "-DTERSIFY_LIBRARY=ON",
        "-DCMAKE_SYSTEM_NAME=Linux",
        f"-DCMAKE_SYSTEM_PROCESSOR={machine}",
        f"-DCMAKE_C_COMPILER={compiler}-gcc",
        f"-DCMAKE_CXX_COMPILER={compiler}-g++",
        f"-DTERSIFY_ZSTD_SOURCE={os.environ[ZSTD]}",
    ]
    for command in (given, ["ninja", "-C", str(build), target.split("/")[1]]):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-2000:]
    return [emulator, str(build / "csrc" / target)]


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "isas"),
    [
        ("cortex-a72", {"portable"}),
        ("cortex-a76", {"portable", "dotprod"}),
        ("max", {"portable", "dotprod", "i8mm"}),
    ],
)
def test_kernels_of_arm_agree_and_only_those_of_the_cpu_run(
    cpu: str, isas: set[str]
) -> None:
    emulator, program = program_for("aarch64", "runtime/kernel_check")
    done = subprocess.run(
        [emulator, "-cpu", cpu, program, "--quick"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all kernels agree")
    assert {line.split()[0] for line in done.stdout.splitlines()[:-1]} == isas
