"""The same file on this machine with every instruction set, on others under qemu, and in
WebAssembly; and the instructions that two-bit products take on ARM.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from machines import MACHINES, ROOT, program_for  # type: ignore[import-not-found]

import tersify
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
# A layer of 64 rows in two bits, of which an engine needs one block and no other kernel.
ROWS, FEATURES, VECTORS = 64, 2048, (1, 2, 4, 16)


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
    path: Path, images: np.ndarray, emulated: int, work: Path, wanted: list[str]
) -> Iterator[tuple[str, np.ndarray]]:
    """What each machine makes of the images; of the first `emulated` where qemu runs it."""
    np.save(work / "in.npy", images)
    (work / "in.bin").write_bytes(images.tobytes())
    module = extension()
    assert module is not None
    if "x86" in wanted:
        for isa in module.isas():
            if isa != "avx512fp16":  # plans have no lanes of fp16
                yield f"x86_{isa}", _run([str(here()), "--isa", isa], path, work)
    if "wasm" in wanted:
        yield "wasm", _in_wasm(path, images, work)
    np.save(work / "in.npy", images[:emulated])
    for machine in [name for name in MACHINES if name in wanted]:
        yield machine, _run(program_for(machine), path, work)


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
    """Executed instructions of the two-bit product, counted by qemu one by one."""
    links = work / "links.map"
    emulator, runner = program_for(
        "aarch64", "run/tersify-run", f"-DCMAKE_EXE_LINKER_FLAGS=-Wl,-Map={links}"
    )
    path, figures = _two_bit_layer(work), {}
    for vectors in VECTORS:
        x = np.random.default_rng(0).standard_normal((vectors, FEATURES))
        np.save(work / "vectors.npy", x.astype(np.float32))
        for isa in ("portable", "dotprod", "i8mm"):
            command = [emulator, runner, "--isa", isa]
            executed = _executed(command, _ranges(links, isa), path, work)
            key = f"two_bit_{isa}_{vectors}_products_an_instruction"
            figures[key] = ROWS * FEATURES * vectors / executed
    return figures


def _two_bit_layer(work: Path) -> Path:
    layer = torch.nn.Linear(FEATURES, ROWS)
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(-1, 2, layer.weight.shape, generator=generator)
    layer.weight.data = signs * 0.05
    model, x = torch.nn.Sequential(layer).eval(), torch.randn(4, FEATURES)
    path = work / "layer.terse"
    tersify.save(
        tersify.pack(model), path, network=model, example=x, plan="int8", calibration=x
    )
    return path


def _executed(
    command: list[str], ranges: list[tuple[int, int]], path: Path, work: Path
) -> int:
    """Lines of qemu's log of single steps inside the kernel's functions."""
    log = work / "steps.log"
    flags = ["-cpu", "max", "-singlestep", "-d", "exec,nochain", "-D", str(log)]
    flags += ["-dfilter", ",".join(f"{begin:#x}+{size:#x}" for begin, size in ranges)]
    emulator, *program = command
    given = [path, work / "vectors.npy", work / "out.npy"]
    subprocess.run([emulator, *flags, *program, *map(str, given)], check=True)
    with log.open() as lines:
        return sum(line.startswith("Trace") for line in lines)


def _ranges(links: Path, namespace: str) -> list[tuple[int, int]]:
    """Where the linker put the functions of products with codes."""
    function = r"(?:code|word)_(?:sums|fields|vectors)"
    wanted = re.compile(rf"\.text\.\S*{namespace}\S*{function}\S*\s+0x(\w+)\s+0x(\w+) ")
    found = wanted.findall(links.read_text())
    ranges = [(int(at, 16), int(size, 16)) for at, size in found if int(at, 16)]
    assert ranges, f"the program has no products of codes for {namespace}"
    return ranges
