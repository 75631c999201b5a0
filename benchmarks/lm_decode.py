"""Decoding of language models beside llama.cpp and litespark-inference: a token, and a
prompt of 128 tokens, on one and two threads.

usage: TERSIFY_LLAMA_PYTHON=PYTHON TERSIFY_LITESPARK_PYTHON=PYTHON python benchmarks/lm_decode.py [--quick]
       [--json FILE] [--files DIR] [--only NAME ...] [--threads N ...] [--memory] [--file]

The first PYTHON has llama-cpp-python and gguf, the second litespark-inference (see
lm_decode_litespark.py). Weights are random: signs in BitNet-2B's shapes (2.08 G
weights; head and embedding are small, so that they cost nothing on any side), tables of
4 bits in SmolLM2-135M's, all of it. Engines run in turns, each in a process of its own.
A cache of 128 tokens stands before the token that is timed.

--memory tells bytes alone, which a busy machine does not change: of the weights, of the
cache, and what is resident beside what was before. --file writes BitNet-2B's shapes to
a `.terse` file of 422 MB in DIR, where it is not there yet, and times from opening it
to the first token.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from common import report
from lm_decode_file import MODULES, config_of, resident_bytes
from lm_decode_llama import NETWORKS, PROMPT, Shapes

LLAMA, LITESPARK = "TERSIFY_LLAMA_PYTHON", "TERSIFY_LITESPARK_PYTHON"
PACKAGES = {LLAMA: "llama-cpp-python", LITESPARK: "litespark-inference"}
HERE = Path(__file__).parent
SIDE, LITESPARK_SIDE = HERE / "lm_decode_llama.py", HERE / "lm_decode_litespark.py"
FILE_SIDE = HERE / "lm_decode_file.py"
NAMES = {module.rpartition(".")[2]: name for name, module in MODULES.items()}
# Who runs which network: ours with weights of a kind, llama.cpp with a type of file. A
# third of BitNet's are zero.
SECTIONS = {
    "bitnet-2b.tersify-signs": ("tersify", "bitnet-2b", "signs33"),
    "bitnet-2b.tersify-zeros70": ("tersify", "bitnet-2b", "signs70"),
    "bitnet-2b.llama-TQ2_0": ("llama", "bitnet-2b", "TQ2_0"),
    "bitnet-2b.llama-TQ1_0": ("llama", "bitnet-2b", "TQ1_0"),
    "bitnet-2b.llama-Q4_0": ("llama", "bitnet-2b", "Q4_0"),
    "bitnet-2b.litespark": ("litespark", "bitnet-2b", "signs33"),
    "smollm2-135m.tersify-table4": ("tersify", "smollm2-135m", "table4"),
    "smollm2-135m.llama-Q4_0": ("llama", "smollm2-135m", "Q4_0"),
}
OF_LLAMA = tuple(f"bitnet-2b.llama-{kind}" for kind in ("TQ2_0", "TQ1_0", "Q4_0"))
SIGNS, ZEROS70 = "bitnet-2b.tersify-signs", "bitnet-2b.tersify-zeros70"
PREFILL = "prompt_tokens_per_second"
# figure → ours, theirs (the fastest counts), what is compared
CONTESTS = {
    "decode.signs": (SIGNS, OF_LLAMA[:1], "token_ms"),
    "decode.zeros70": (ZEROS70, OF_LLAMA[:1], "token_ms"),
    "prefill.signs": (SIGNS, OF_LLAMA, PREFILL),
    "decode.signs.litespark": (SIGNS, ("bitnet-2b.litespark",), "token_ms"),
    "prefill.signs.litespark": (SIGNS, ("bitnet-2b.litespark",), PREFILL),
    "decode.table4": (
        "smollm2-135m.tersify-table4",
        ("smollm2-135m.llama-Q4_0",),
        "token_ms",
    ),
}


class RandomWeights:
    """A source of packed weights: those of one layer serve all."""

    def __init__(self, shapes: Shapes, kind: str) -> None:
        torch.manual_seed(0)
        self._shapes, self._kind = shapes, kind
        self._made: dict[str, Any] = {
            name: self._packed(*shape) for name, shape in shapes.matrices().items()
        }
        small = shapes.vocabulary < 1024
        self._table = (
            torch.randn(shapes.vocabulary, shapes.hidden)
            if small
            else self._packed(shapes.vocabulary, shapes.hidden)
        )

    def _packed(self, rows: int, features: int) -> Any:
        from tersify import CompressedTensor

        if self._kind == "table4":
            codes, levels = (
                torch.randint(16, (rows, features), dtype=torch.uint8),
                torch.arange(-8.0, 8.0).roll(8),
            )
        else:
            fraction = float(self._kind.removeprefix("signs")) / 100
            signs = torch.randint(1, 3, (rows, features), dtype=torch.uint8)
            codes, levels = (
                signs.masked_fill_(torch.rand(rows, features) < fraction, 0),
                torch.tensor([0.0, 1.0, -1.0]),
            )
        return CompressedTensor(
            shape=(rows, features),
            codes=codes,
            codebook=levels,
            scale=torch.tensor(0.02),
        )

    def matrix(self, name: str) -> Any:
        from tersify.runtime.decode.source import Matrix

        kind = NAMES.get(name.rpartition(".")[2])
        return Matrix(weight=self._table if kind is None else self._made[kind])

    def norm(self, name: str) -> Any:
        from tersify.runtime.decode.source import Norm

        return Norm(
            weight=torch.ones(self._shapes.hidden), bias=None, eps=1e-5, centred=False
        )


def measure_ours(
    network_name: str, kind: str, threads: int, seconds: float
) -> dict[str, float]:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from tersify.runtime.decode.architecture import architecture_of
    from tersify.runtime.decode.compile import rotation_of
    from tersify.runtime.decode.decoder import Decoder
    from tersify.runtime.decode.network import Network
    from tersify.runtime.engine import Kernels
    from tersify.runtime.extension import extension

    shapes = NETWORKS[network_name]
    config = config_of(shapes)
    module = extension()
    assert module is not None, "the compiled kernels are missing"
    source = RandomWeights(shapes, kind)
    module.release_free_memory()  # what making the weights left is not the decoder's
    before = resident_bytes()
    begin = time.perf_counter()
    network = Network(Kernels(module, threads), architecture_of(config), source, "int8")
    ready = time.perf_counter() - begin
    decoder = Decoder(
        network, rotation_of(LlamaRotaryEmbedding(config)), context=1024, half=True
    )
    prompt = torch.randint(shapes.vocabulary, (PROMPT,)).tolist()
    speeds, tokens, position = [], [], PROMPT
    for _ in range(3):
        begin = time.perf_counter()
        decoder.prompt(0, prompt)
        speeds.append(PROMPT / (time.perf_counter() - begin))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and position < 1016:
        begin = time.perf_counter()
        decoder.run([0], [position], [7], [0])
        tokens.append(1e3 * (time.perf_counter() - begin))
        position += 1
    return {
        "token_ms": sorted(tokens)[len(tokens) // 2],
        "token_best_ms": min(tokens),
        "prompt_tokens_per_second": max(speeds),
        "ready_s": ready,
        "weight_bytes": float(network.weight_bytes()),
        "cache_bytes": float(decoder.cache_bytes),
        "resident_bytes": float(resident_bytes() - before),
    }


def in_a_process(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def llama_file(folder: Path, network: str, kind: str, python: str) -> Path:
    path = folder / f"{network}-{kind}.gguf"
    if not path.exists():
        subprocess.run(
            [python, str(SIDE), "write", network, kind, str(path)], check=True
        )
    return path


def measure(
    section: str, threads: int, seconds: float, folder: Path
) -> dict[str, float] | None:
    """None where the interpreter is not named that runs it."""
    who, network, kind = SECTIONS[section]
    given = [str(threads), str(seconds)]
    if who == "tersify":
        return in_a_process(
            [sys.executable, __file__, "--worker", network, kind, *given]
        )
    python = os.environ.get(LLAMA if who == "llama" else LITESPARK)
    if python is None:
        return None
    if who == "litespark":
        return in_a_process([python, str(LITESPARK_SIDE), network, *given])
    path = llama_file(folder, network, kind, python)
    return in_a_process([python, str(SIDE), "time", str(path), *given])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a second of tokens instead of six"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--files",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where llama.cpp's files and ours lie",
    )
    parser.add_argument(
        "--only", nargs="*", default=list(SECTIONS), choices=list(SECTIONS)
    )
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument(
        "--memory", action="store_true", help="bytes of ours alone, no speeds"
    )
    parser.add_argument(
        "--file", action="store_true", help="from an opened file to the first token"
    )
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        network, kind, threads, seconds = arguments.worker
        print(json.dumps(measure_ours(network, kind, int(threads), float(seconds))))
        return
    if arguments.memory or arguments.file:
        (report_memory if arguments.memory else report_file)(arguments)
        return
    figures: dict[str, float] = {}
    if arguments.json and arguments.json.exists():
        figures = json.loads(arguments.json.read_text())["figures"]
    seconds = 1.0 if arguments.quick else 6.0
    for threads in arguments.threads:
        for section in arguments.only:
            found = measure(section, threads, seconds, arguments.files)
            if found is None:
                print(
                    f"{section:28} missing: name an interpreter that has it in {LLAMA} or {LITESPARK}"
                )
                continue
            print(
                f"{section:28} {threads} threads  "
                + "  ".join(f"{k} {v:,.2f}" for k, v in found.items()),
                flush=True,
            )
            figures |= {
                f"{section}.t{threads}.{name}": round(value, 4)
                for name, value in found.items()
            }
    compare(figures)
    versions = {"torch": torch.__version__} | {
        package: _version(os.environ.get(variable), package)
        for variable, package in PACKAGES.items()
    }
    report("lm-decode", figures, json_path=arguments.json, versions=versions)


def report_file(arguments: argparse.Namespace) -> None:
    """2 G weights must be ready in ten seconds."""
    network = "bitnet-2b"
    path = arguments.files / f"{network}.terse"
    if not path.exists():
        write = [sys.executable, str(FILE_SIDE), "write", network, str(path)]
        subprocess.run(write, check=True)
    figures: dict[str, float] = {}
    for threads in arguments.threads:
        ready = [sys.executable, str(FILE_SIDE), "ready", network, str(path)]
        found = in_a_process([*ready, str(threads)])
        found["most_bytes"] = 1.15 * found["weight_bytes"] + found["cache_bytes"]
        print(network, threads, {k: round(v, 2) for k, v in found.items()}, flush=True)
        figures |= {
            f"{network}.file.t{threads}.{k}": round(v, 4) for k, v in found.items()
        }
    versions = {"torch": torch.__version__}
    report("lm-file", figures, json_path=arguments.json, versions=versions)


def report_memory(arguments: argparse.Namespace) -> None:
    """What must be resident is at most 1.15 of the weights, and the cache."""
    figures: dict[str, float] = {}
    for section in arguments.only:
        for threads in arguments.threads:
            found = SECTIONS[section][0] == "tersify" and measure(
                section, threads, 0.1, arguments.files
            )
            if found:
                found["most_bytes"] = (
                    1.15 * found["weight_bytes"] + found["cache_bytes"]
                )
                kept = {k: v for k, v in found.items() if k.endswith("_bytes")}
                figures |= {f"{section}.t{threads}.{k}": v for k, v in kept.items()}
                print(section, threads, {k: round(v) for k, v in kept.items()})
    report(
        "lm-memory",
        figures,
        json_path=arguments.json,
        versions={"torch": torch.__version__},
    )


def _version(python: str | None, package: str) -> str:
    if python is None:
        return "none"
    asked = f"import importlib.metadata as m; print(m.version({package!r}))"
    command = [python, "-c", asked]
    return subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.strip()


def compare(figures: dict[str, float]) -> None:
    """How many times faster than the fastest of theirs."""
    for threads in (1, 2):
        for name, (ours, theirs, what) in CONTESTS.items():
            mine = figures.get(f"{ours}.t{threads}.{what}")
            others = [
                figures[f"{each}.t{threads}.{what}"]
                for each in theirs
                if f"{each}.t{threads}.{what}" in figures
            ]
            if mine is not None and others:
                times = min(others) / mine if what == "token_ms" else mine / max(others)
                figures[f"{name}.t{threads}.speedup"] = round(times, 3)
    for name, value in figures.items():
        if name.endswith("speedup"):
            print(f"{name:32} {value:.2f}")


if __name__ == "__main__":
    main()
