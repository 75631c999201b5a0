"""The C++ sources are read by clang, too: wheels are built with it."""

import platform
import re
import shutil
import subprocess
from collections import Counter
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
# ARM by a compiler for it.
FOR_ARM = ("_neon.cpp", "_dotprod.cpp")
SOURCES = sorted(
    path.relative_to(CSRC).as_posix()
    for folder in ("runtime", "codec")
    for path in (CSRC / folder).rglob("*.cpp")
    if "nanobind" not in path.read_text(encoding="utf-8")
    and "bindings" not in path.parts
    and not path.name.endswith(FOR_ARM)
)

pytestmark = [
    pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64"),
]
LABEL = re.compile(r"^(_Z\w+):")
ADDED = re.compile(r"\s+(?:vfmadd\w+|vpdpbusd|vpadd[dw]|vpsubw|vaddps)\s.*(%zmm\d+)")
STORED = re.compile(r"\s+vmov\w+\s+(%zmm\d+), -?\d*\(%r[sb]p")
FEW = 8  # a kernel may run out of registers for some; its sums are 16 and more


def with_clang(source: str, *options: str) -> str:
    flags = FLAGS.get(Path(source).name, "").split()
    folders = [f"-I{CSRC}", f"-I{CSRC / 'runtime'}", f"-I{CSRC / 'codec'}"]
    command = ["clang++", "-std=gnu++20", *options, *folders, *flags]
    done = subprocess.run(
        [*command, str(CSRC / source)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("source", SOURCES)
def test_clang_reads_every_source(source):
    with_clang(source, "-fsyntax-only")


def test_sums_stay_in_registers():
    """A sum that is stored behind each addition makes a kernel two to three times as
    slow. clang does it where a function that is not inlined, or a loop that counts, looks
    at the sums afterwards.
    """
    options = ("-O3", "-ffp-contract=fast", "-DNDEBUG", "-S", "-o", "-")
    stored: Counter[str] = Counter()
    function, sum_of_last_line = "", ""
    for line in with_clang("runtime/isa/isa_avx512.cpp", *options).splitlines():
        if label := LABEL.match(line):
            function = label[1]
        if (store := STORED.match(line)) and store[1] == sum_of_last_line:
            stored[function] += 1
        added = ADDED.match(line)
        sum_of_last_line = added[1] if added else ""
    assert {name: count for name, count in stored.items() if count >= FEW} == {}
