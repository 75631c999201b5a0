"""Programs built for other machines, and the commands that run them here."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
ZSTD = ROOT / "build" / "zstd"
MACHINES = {
    "aarch64": ("aarch64-linux-gnu", "qemu-aarch64-static"),
    "armhf": ("arm-linux-gnueabihf", "qemu-arm-static"),
    "riscv64": ("riscv64-linux-gnu", "qemu-riscv64-static"),
}
# clang is the compiler here that knows vectors of RISC-V.
RISCV_CLANG = "clang++-19"


@contextmanager
def alone_in(build: Path) -> Iterator[None]:
    """Tests run in several processes, and two that build into one folder destroy each
    other's files.
    """
    build.parent.mkdir(parents=True, exist_ok=True)
    with build.with_name(build.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def missing(machine: str) -> str:
    """What is not there, in words; empty where all is."""
    compiler, emulator = MACHINES[machine]
    programs = (f"{compiler}-g++", emulator, "cmake", "ninja")
    lacking = [program for program in programs if shutil.which(program) is None]
    if not (ZSTD / "zstd.c").is_file():
        lacking.append("build/zstd (python tools/zstd_source.py)")
    return ", ".join(lacking)


def program_for(
    machine: str, target: str = "run/tersify-run", *options: str, name: str = ""
) -> list[str]:
    """The command that runs a target of csrc as built for the machine, in build/NAME."""
    compiler, emulator = MACHINES[machine]
    build = ROOT / "build" / (name or machine)
    given = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja"]
    given += ["-DTERSIFY_LIBRARY=ON", "-DCMAKE_SYSTEM_NAME=Linux"]
    given += [
        f"-DCMAKE_SYSTEM_PROCESSOR={machine}",
        f"-DCMAKE_C_COMPILER={compiler}-gcc",
        f"-DCMAKE_CXX_COMPILER={compiler}-g++",
        f"-DTERSIFY_ZSTD_SOURCE={ZSTD}",
        *options,
    ]
    with alone_in(build):
        for command in (given, ["ninja", "-C", str(build), target.split("/")[1]]):
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                raise RuntimeError(made.stdout[-4000:] + made.stderr[-2000:])
    return [emulator, str(build / "csrc" / target)]
