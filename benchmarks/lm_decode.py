"""Decoding of language models beside llama.cpp: a token, and a prompt of 128 tokens, on
one and two threads.

usage: TERSIFY_LLAMA_PYTHON=PYTHON python benchmarks/lm_decode.py [--quick] [--json FILE] [--files DIR]
       [--only NAME ...] [--threads N ...] [--memory]

PYTHON has llama-cpp-python and gguf. Weights are random: signs in BitNet-2B's shapes
(2.08 G weights; head and embedding are small, so that they cost nothing on either
side), tables of 4 bits in SmolLM2-135M's, all of it. Engines run in turns, each in a
process of its own. A cache of 128 tokens stands before the token that is timed.

--memory tells bytes alone, which a busy machine does not change: of the weights, of the
cache, and what is resident beside what was before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from common import report
from lm_decode_llama import NETWORKS, PROMPT, Shapes

LLAMA = "TERSIFY_LLAMA_PYTHON"
SIDE = Path(__file__).parent / "lm_decode_llama.py"
NAMES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
}
NAMES |= {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
# Who runs which network: ours with weights of a kind, llama.cpp with a type of file. A
# third of BitNet's are zero.
SECTIONS = {
    "bitnet-2b.tersify-signs": ("tersify", "bitnet-2b", "signs33"),
    "bitnet-2b.tersify-zeros70": ("tersify", "bitnet-2b", "signs70"),
    "bitnet-2b.llama-TQ2_0": ("llama", "bitnet-2b", "TQ2_0"),
    "bitnet-2b.llama-Q4_0": ("llama", "bitnet-2b", "Q4_0"),
    "smollm2-135m.tersify-table4": ("tersify", "smollm2-135m", "table4"),
    "smollm2-135m.llama-Q4_0": ("llama", "smollm2-135m", "Q4_0"),
}
# figure → ours, theirs (the fastest counts), what is compared
CONTESTS = {
    "decode.signs": ("bitnet-2b.tersify-signs", ("bitnet-2b.llama-TQ2_0",), "token_ms"),
    "decode.zeros70": (
        "bitnet-2b.tersify-zeros70",
        ("bitnet-2b.llama-TQ2_0",),
        "token_ms",
    ),
    "prefill.signs": (
        "bitnet-2b.tersify-signs",
        ("bitnet-2b.llama-TQ2_0", "bitnet-2b.llama-Q4_0"),
        "prompt_tokens_per_second",
    ),
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


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure_ours(
    network_name: str, kind: str, threads: int, seconds: float
) -> dict[str, float]:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from tersify.runtime.decode.architecture import architecture_of
    from tersify.runtime.decode.compile import rotation_of
    from tersify.runtime.decode.decoder import Decoder
    from tersify.runtime.decode.network import Network
    from tersify.runtime.engine import Kernels
    from tersify.runtime.extension import extension

    shapes = NETWORKS[network_name]
    config = LlamaConfig(
        hidden_size=shapes.hidden,
        intermediate_size=shapes.inner,
        num_hidden_layers=shapes.layers,
        num_attention_heads=shapes.heads,
        num_key_value_heads=shapes.key_heads,
        head_dim=shapes.width,
        vocab_size=shapes.vocabulary,
        tie_word_embeddings=shapes.tied,
    )
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
    section: str, threads: int, seconds: float, folder: Path, python: str | None
) -> dict[str, float] | None:
    who, network, kind = SECTIONS[section]
    if who == "tersify":
        return in_a_process(
            [
                sys.executable,
                __file__,
                "--worker",
                network,
                kind,
                str(threads),
                str(seconds),
            ]
        )
    if python is None:
        return None
    path = llama_file(folder, network, kind, python)
    return in_a_process(
        [python, str(SIDE), "time", str(path), str(threads), str(seconds)]
    )


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
        help="where llama.cpp's files lie",
    )
    parser.add_argument("--only", nargs="*", default=list(SECTIONS))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument(
        "--memory", action="store_true", help="bytes of ours alone, no speeds"
    )
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        network, kind, threads, seconds = arguments.worker
        print(json.dumps(measure_ours(network, kind, int(threads), float(seconds))))
        return
    if arguments.memory:
        report_memory(arguments)
        return
    figures: dict[str, float] = {}
    if arguments.json and arguments.json.exists():
        figures = json.loads(arguments.json.read_text())["figures"]
    python = os.environ.get(LLAMA)
    for threads in arguments.threads:
        for section in arguments.only:
            found = measure(
                section,
                threads,
                1.0 if arguments.quick else 6.0,
                arguments.files,
                python,
            )
            if found is None:
                print(
                    f"{section:28} missing: name an interpreter that has llama-cpp-python in {LLAMA}"
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
    versions = {"torch": torch.__version__, "llama-cpp-python": _llama_version(python)}
    report("lm-decode", figures, json_path=arguments.json, versions=versions)


def report_memory(arguments: argparse.Namespace) -> None:
    """What must be resident is at most 1.15 of the weights, and the cache."""
    figures: dict[str, float] = {}
    for section in arguments.only:
        for threads in arguments.threads:
            found = SECTIONS[section][0] == "tersify" and measure(
                section, threads, 0.1, arguments.files, None
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


def _llama_version(python: str | None) -> str:
    if python is None:
        return "none"
    command = [
        python,
        "-c",
        "import importlib.metadata as m; print(m.version('llama-cpp-python'))",
    ]
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
