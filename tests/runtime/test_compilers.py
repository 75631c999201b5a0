"""The C++ sources are read by clang, too: wheels are built with it."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
AVX512 = "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma"
FLAGS = {
    "isa_avx2.cpp": "-mavx2 -mfma",
    "isa_avx512.cpp": AVX512,
    "isa_avx512vnni.cpp": f"{AVX512} -mavx512vnni",
    "isa_avx512fp16.cpp": f"{AVX512} -mavx512vnni -mavx512fp16",
    "linear_picks_i8_vbmi.cpp": f"{AVX512} -mavx512vnni -mavx512vbmi",
    "linear_lookup_i8_vbmi.cpp": f"{AVX512} -mavx512vnni -mavx512vbmi",
    "linear_2bit_i8_amx.cpp": f"{AVX512} -mavx512vnni -mamx-tile -mamx-int8",
    "decode_x86.cpp": "-mavx2",
    "flat_x86.cpp": "-mavx2",
}
# Sources that include Python's headers are compiled with the wheels alone, and those for
# NEON by a compiler for ARM.
SOURCES = sorted(
    path.relative_to(CSRC).as_posix()
    for folder in ("runtime", "codec")
    for path in (CSRC / folder).rglob("*.cpp")
    if "nanobind" not in path.read_text(encoding="utf-8")
    and "bindings" not in path.parts
    and not path.name.endswith("_neon.cpp")
)


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
@pytest.mark.parametrize("source", SOURCES)
def test_clang_reads_every_source(source):
    flags = FLAGS.get(Path(source).name, "").split()
    folders = [f"-I{CSRC}", f"-I{CSRC / 'runtime'}", f"-I{CSRC / 'codec'}"]
    command = ["clang++", "-std=gnu++20", "-fsyntax-only", *folders, *flags]
    done = subprocess.run(
        [*command, str(CSRC / source)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
