"""The same file on this machine with every instruction set, on others under qemu, and in
WebAssembly; and the instructions that two-bit products take on ARM.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from machines import MACHINES, ROOT, program_for  # type: ignore[import-not-found]

from tersify.runtime.extension import extension

PACKAGE = ROOT / "packages" / "run"
RUN_ALL = """
import { readFileSync, writeFileSync } from "node:fs";
import { runtime } from "PACKAGE/index.js";
const [file, given, made, batch, each] = process.argv.slice(2);
const network = (await runtime(readFileSync("PACKAGE/tersify.wasm"))).open(readFileSync(file));
const bytes = readFileSync(given), out = [];
const numbers = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
const step = batch * each;
for (let at = 0; at < numbers.length; at += step)
  out.push(Buffer.from(network.run([numbers.slice(at, at + step)], Number(batch))[0].buffer));
writeFileSync(made, Buffer.concat(out));
"""
BATCH = 50
EMULATED_BATCH = 40  # images of one process under qemu
# A layer of 64 rows, of which an engine needs one block and no other kernel: kernel_check
# --layer. Kind: name in the record, instruction sets, vectors, functions of the kernel.
ROWS, FEATURES, VECTORS = 64, 2048, (1, 2, 4, 16)
POSITIONS, WINDOW = 8 * 8, 3 * 3 * 64  # of a convolution
ISAS = ("portable", "dotprod", "i8mm")
CODES = r"ISA\S*(?:code|word)_(?:sums|fields|vectors)|pair_(?:tables|sums)"
LAYERS = {
    "signs": ("two_bit", ISAS, VECTORS, CODES),
    "table": ("four_bit", ISAS, (1,), CODES),
    "sparse": ("picked", ISAS, (1,), "pick_sums"),
    "bits": ("bits", ("portable",), (1,), r"ISA\S*bit_sums"),
    "conv": ("conv_two_bit", ISAS, (1,), CODES),
    "lists": ("conv_fp16_lists", ("portable", "neonfp16"), (1,), r"ISA\S*Fp16Lanes"),
}
PLUGIN = Path(__file__).with_name("count_instructions.c")


def here() -> Path:
    """tersify-run for this machine."""
    build = ROOT / "build" / "lib"
    for command in (
        f"cmake -S {ROOT} -B {build} -G Ninja -DTERSIFY_LIBRARY=ON",
        f"ninja -C {build} tersify-run",
    ):
        subprocess.run(command.split(), check=True, capture_output=True)
    return build / "csrc" / "run" / "tersify-run"


def made_by_all(
    path: Path,
    images: np.ndarray,
    work: Path,
    *,
    emulated: int,
    processes: int,
    machines: list[str],
) -> Iterator[tuple[str, np.ndarray]]:
    """What each machine makes of the images; of the first `emulated` where qemu runs it."""
    np.save(work / "in.npy", images)
    (work / "in.bin").write_bytes(images.tobytes())
    module = extension()
    assert module is not None
    if "x86" in machines:
        for isa in module.isas():
            if isa != "avx512fp16":  # plans have no lanes of fp16
                yield f"x86_{isa}", _run([str(here()), "--isa", isa], path, work)
    if "wasm" in machines:
        yield "wasm", _in_wasm(path, images, work)
    for machine in [name for name in MACHINES if name in machines]:
        command = program_for(machine)
        yield machine, made_in_parts(command, path, images[:emulated], work, processes)


def made_in_parts(
    command: list[str], path: Path, images: np.ndarray, work: Path, processes: int
) -> np.ndarray:
    """Some images a process. What was made stays in the folder, so that a run that was
    stopped goes on.
    """
    made_of = Path(command[-1]).read_bytes() + path.read_bytes() + images.tobytes()
    folder = work / "emulated" / hashlib.sha256(made_of).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    part = partial(_one_part, command, path, images, folder)
    with ThreadPoolExecutor(processes) as together:
        parts = list(together.map(part, range(0, len(images), EMULATED_BATCH)))
    return np.concatenate(parts)


def _one_part(
    command: list[str], path: Path, images: np.ndarray, folder: Path, first: int
) -> np.ndarray:
    made, whole = folder / f"part-{first}.npy", folder / f"{first}.npy"
    if not whole.is_file():
        given = folder / f"in-{first}.npy"
        np.save(given, images[first : first + EMULATED_BATCH])
        subprocess.run([*command, path, given, made], check=True)
        made.rename(whole)
        given.unlink(missing_ok=True)
    return np.load(whole)


def _run(command: list[str], path: Path, work: Path) -> np.ndarray:
    subprocess.run([*command, path, work / "in.npy", work / "out.npy"], check=True)
    return np.load(work / "out.npy")


def _in_wasm(path: Path, images: np.ndarray, work: Path) -> np.ndarray:
    node = shutil.which("node")
    assert node is not None, "node is not installed"
    assert (PACKAGE / "tersify.wasm").is_file(), "make wasm builds the module"
    script = work / "all.mjs"
    script.write_text(RUN_ALL.replace("PACKAGE", str(PACKAGE)))
    given = (path, work / "in.bin", work / "out.bin", BATCH, images[0].size)
    subprocess.run([node, script, *map(str, given)], check=True)
    return np.fromfile(work / "out.bin", np.float32).reshape(len(images), -1)


def products_an_instruction(work: Path) -> dict[str, float]:
    """Products of one layer by the executed instructions of its kernel, which a plugin of
    qemu counts.
    """
    work.mkdir(parents=True, exist_ok=True)
    links, plugin = work / "links.map", work / "count_instructions.so"
    compiled = f"cc -O2 -shared -fPIC {PLUGIN} -o {plugin}"
    subprocess.run(compiled.split(), check=True)
    _, program = program_for(
        "aarch64",
        "runtime/kernel_check",
        f"-DCMAKE_EXE_LINKER_FLAGS=-Wl,-Map={links}",
        "-DTERSIFY_PLANS_ONLY=OFF",
        name="aarch64-counts",
    )
    figures = {}
    for kind, (key, isas, counts, functions) in LAYERS.items():
        for vectors in counts:
            for isa in isas:
                layer = [program, "--layer", kind, isa, str(vectors)]
                ranges = _ranges(links, functions.replace("ISA", isa))
                executed = _executed(layer, ranges, plugin)
                name = f"{key}_{isa}_{vectors}_products_an_instruction"
                each = POSITIONS * WINDOW if key.startswith("conv_") else FEATURES
                figures[name] = ROWS * each * vectors / executed
    return figures


def _executed(program: list[str], ranges: list[tuple[int, int]], plugin: Path) -> int:
    """Instructions inside the kernel's functions. The static emulator takes no plugin:
    `apt-get install qemu-user`.
    """
    out = plugin.with_suffix(".txt")
    out.unlink(missing_ok=True)
    given = [f"{plugin}", f"out={out}"]
    given += [f"at={begin:#x},to={begin + size:#x}" for begin, size in ranges]
    flags = ["-cpu", "max", "-plugin", ",".join(given)]
    subprocess.run(["qemu-aarch64", *flags, *program], check=True)
    return int(out.read_text())


def _ranges(links: Path, functions: str) -> list[tuple[int, int]]:
    """Where the linker put the functions."""
    wanted = re.compile(rf"\.text\.\S*(?:{functions})\S*\s+0x(\w+)\s+0x(\w+) ")
    found = wanted.findall(links.read_text())
    ranges = [(int(at, 16), int(size, 16)) for at, size in found if int(at, 16)]
    assert ranges, f"the program has no function {functions}"
    return ranges
