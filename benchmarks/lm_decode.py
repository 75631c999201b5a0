"""Decoding of language models beside llama.cpp: a token, and a prompt of 128 tokens, on one and two threads.

usage: TERSIFY_LLAMA_PYTHON=PYTHON python benchmarks/lm_decode.py [--quick] [--json FILE] [--files DIR]
       [--only NAME ...] [--threads N ...]

PYTHON has llama-cpp-python and gguf. The network has BitNet-2B's shapes (2.08 G weights) with random signs; head and
embedding are small, so that they cost nothing on either side. Engines run in turns, each in a process of its own. A
cache of 128 tokens stands before the token that is timed.
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
from lm_decode_llama import HEADS, HIDDEN, INNER, KEY_HEADS, LAYERS, MATRICES, PROMPT, VOCABULARY, WIDTH

LLAMA = "TERSIFY_LLAMA_PYTHON"
SIDE = Path(__file__).parent / "lm_decode_llama.py"
THIRD = 1 / 3  # of zeros, as BitNet's weights have about
NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
NAMES |= {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
SECTIONS = {
    "tersify.third": ("tersify", THIRD),
    "tersify.zeros70": ("tersify", 0.7),
    "llama.TQ2_0": ("llama", "TQ2_0"),
    "llama.Q4_0": ("llama", "Q4_0"),
}


class RandomSigns:
    """A source of weights: one layer's signs for all layers."""

    def __init__(self, zeros: float) -> None:
        torch.manual_seed(0)
        self._weights = {}
        for name, shape in MATRICES.items():
            signs = torch.where(torch.rand(shape) < 0.5, -0.02, 0.02)
            self._weights[name] = torch.where(torch.rand(shape) < zeros, 0.0, signs)
        self._table = torch.randn(VOCABULARY, HIDDEN)

    def matrix(self, name: str) -> Any:
        from tersify.runtime.decode.source import Matrix

        kind = NAMES.get(name.rpartition(".")[2])
        return Matrix(weight=self._table if kind is None else self._weights[kind])

    def norm(self, name: str) -> Any:
        from tersify.runtime.decode.source import Norm

        return Norm(weight=torch.ones(HIDDEN), bias=None, eps=1e-5, centred=False)


def measure_ours(zeros: float, threads: int, seconds: float) -> dict[str, float]:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from tersify.runtime.decode.architecture import architecture_of
    from tersify.runtime.decode.compile import rotation_of
    from tersify.runtime.decode.decoder import Decoder
    from tersify.runtime.decode.network import Network
    from tersify.runtime.engine import Kernels
    from tersify.runtime.extension import extension

    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=WIDTH,
        vocab_size=VOCABULARY,
    )
    module = extension()
    assert module is not None, "the compiled kernels are missing"
    source = RandomSigns(zeros)
    begin = time.perf_counter()
    network = Network(Kernels(module, threads), architecture_of(config), source, "int8")
    ready = time.perf_counter() - begin
    decoder = Decoder(network, rotation_of(LlamaRotaryEmbedding(config)), context=1024, half=True)
    prompt = torch.randint(VOCABULARY, (PROMPT,)).tolist()
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
        "prompt_tokens_per_second": max(speeds),
        "ready_s": ready,
        "weight_bytes": float(network.weight_bytes()),
        "cache_bytes": float(decoder.cache_bytes),
        "most_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def in_a_process(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def llama_file(folder: Path, kind: str, python: str) -> Path:
    path = folder / f"bitnet-2b-{kind}.gguf"
    if not path.exists():
        subprocess.run([python, str(SIDE), "write", kind, str(path)], check=True)
    return path


def measure(section: str, threads: int, seconds: float, folder: Path, python: str | None) -> dict[str, float] | None:
    who, what = SECTIONS[section]
    if who == "tersify":
        own = [sys.executable, __file__, "--worker", str(what), str(threads), str(seconds)]
        return in_a_process(own)
    if python is None:
        return None
    path = llama_file(folder, str(what), python)
    return in_a_process([python, str(SIDE), "time", str(path), str(threads), str(seconds)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a second of tokens instead of six")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--files", type=Path, default=Path(tempfile.gettempdir()), help="where llama.cpp's files lie")
    parser.add_argument("--only", nargs="*", default=list(SECTIONS))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        zeros, threads, seconds = arguments.worker
        print(json.dumps(measure_ours(float(zeros), int(threads), float(seconds))))
        return
    figures: dict[str, float] = {}
    if arguments.json and arguments.json.exists():
        figures = json.loads(arguments.json.read_text())["figures"]
    python = os.environ.get(LLAMA)
    for threads in arguments.threads:
        for section in arguments.only:
            found = measure(section, threads, 1.0 if arguments.quick else 6.0, arguments.files, python)
            if found is None:
                print(f"{section:16} missing: name an interpreter that has llama-cpp-python in {LLAMA}")
                continue
            print(
                f"{section:16} {threads} threads  " + "  ".join(f"{k} {v:,.2f}" for k, v in found.items()), flush=True
            )
            figures |= {f"{section}.t{threads}.{name}": round(value, 4) for name, value in found.items()}
    compare(figures)
    versions = {"torch": torch.__version__, "llama-cpp-python": _llama_version(python)}
    report("lm-decode", figures, json_path=arguments.json, versions=versions)


def _llama_version(python: str | None) -> str:
    if python is None:
        return "none"
    command = [python, "-c", "import importlib.metadata as m; print(m.version('llama-cpp-python'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def compare(figures: dict[str, float]) -> None:
    """How many times faster: a token than TQ2_0's, a prompt than the fastest of theirs."""
    for threads in (1, 2):
        ends = {name: f"t{threads}.{name}" for name in ("token_ms", "prompt_tokens_per_second")}
        theirs = [
            figures[f"{s}.{ends['prompt_tokens_per_second']}"]
            for s in SECTIONS
            if s.startswith("llama") and f"{s}.{ends['prompt_tokens_per_second']}" in figures
        ]
        for ours in ("third", "zeros70"):
            mine, other = (
                figures.get(f"tersify.{ours}.{ends['token_ms']}"),
                figures.get(f"llama.TQ2_0.{ends['token_ms']}"),
            )
            if mine and other:
                figures[f"decode.{ours}.t{threads}.speedup"] = round(other / mine, 3)
            prompt = figures.get(f"tersify.{ours}.{ends['prompt_tokens_per_second']}")
            if prompt and theirs:
                figures[f"prefill.{ours}.t{threads}.speedup"] = round(prompt / max(theirs), 3)
    for name, value in figures.items():
        if name.endswith("speedup"):
            print(f"{name:32} {value:.2f}")


if __name__ == "__main__":
    main()
