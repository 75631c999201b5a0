"""llama.cpp's side of lm_decode.py, for an interpreter that has llama-cpp-python, gguf
and numpy, and nothing of ours.

usage: python lm_decode_llama.py write NETWORK TYPE FILE | time FILE THREADS SECONDS

`write` makes a Llama of some shapes with random weights of one type; the same bytes
serve every layer. `time` prints milliseconds of a token and tokens a second of a prompt
as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

PROMPT, CONTEXT = 128, 1024


@dataclass(frozen=True)
class Shapes:
    """Of a Llama; a small vocabulary leaves head and embedding out of the time."""

    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    width: int
    vocabulary: int
    tied: bool

    def matrices(self) -> dict[str, tuple[int, int]]:
        """The name of llama.cpp's tensors, and [outputs, features]."""
        queries, keys = self.heads * self.width, self.key_heads * self.width
        return {
            "attn_q": (queries, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, queries),
            "ffn_gate": (self.inner, self.hidden),
            "ffn_up": (self.inner, self.hidden),
            "ffn_down": (self.hidden, self.inner),
        }


NETWORKS = {
    "bitnet-2b": Shapes(2560, 6912, 30, 20, 5, 128, 512, tied=False),
    "smollm2-135m": Shapes(576, 1536, 30, 9, 3, 64, 49152, tied=True),
}
DELTA = 0.02  # what a step stands for


def random_blocks(
    kind: str, rows: int, features: int, random: np.random.Generator
) -> np.ndarray:
    """Rows of valid blocks of a type: scale and codes as llama.cpp lays them."""
    delta = np.frombuffer(np.float16(DELTA).tobytes(), np.uint8)
    if kind == "TQ2_0":  # 64 bytes of four codes 0..2, then the scale
        trits = np.array(
            [
                a | b << 2 | c << 4 | d << 6
                for a in range(3)
                for b in range(3)
                for c in range(3)
                for d in range(3)
            ]
        )
        blocks = np.empty((rows, features // 256, 66), np.uint8)
        blocks[..., :64] = trits.astype(np.uint8)[
            random.integers(0, 81, (rows, features // 256, 64), np.uint8)
        ]
        blocks[..., 64:] = delta
    elif kind == "TQ1_0":  # 48 bytes of five, 4 of four, then the scale
        blocks = random.integers(0, 256, (rows, features // 256, 54), np.uint8)
        blocks[..., 52:] = delta
    else:  # Q4_0: the scale, then 16 bytes of two codes
        blocks = random.integers(0, 256, (rows, features // 32, 18), np.uint8)
        blocks[..., :2] = delta
    return blocks.reshape(rows, -1)


def write(network: str, kind: str, path: str) -> None:
    import gguf

    shapes = NETWORKS[network]
    random = np.random.default_rng(0)
    writer: Any = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shapes.hidden)
    writer.add_block_count(shapes.layers)
    writer.add_feed_forward_length(shapes.inner)
    writer.add_head_count(shapes.heads)
    writer.add_head_count_kv(shapes.key_heads)
    writer.add_rope_dimension_count(shapes.width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{i}>".encode() for i in range(shapes.vocabulary)])
    writer.add_token_scores([0.0] * shapes.vocabulary)
    writer.add_token_types([1] * shapes.vocabulary)
    quantization = gguf.GGMLQuantizationType[kind]
    if shapes.tied:
        table = random_blocks(kind, shapes.vocabulary, shapes.hidden, random)
        writer.add_tensor("token_embd.weight", table, raw_dtype=quantization)
    else:
        for name in ("token_embd.weight", "output.weight"):
            writer.add_tensor(
                name,
                random.standard_normal((shapes.vocabulary, shapes.hidden)).astype(
                    np.float16
                ),
            )
    writer.add_tensor("output_norm.weight", np.ones(shapes.hidden, np.float32))
    made = {
        name: random_blocks(kind, *shape, random)
        for name, shape in shapes.matrices().items()
    }
    for layer in range(shapes.layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(
                f"blk.{layer}.{norm}.weight", np.ones(shapes.hidden, np.float32)
            )
        for name, blocks in made.items():
            writer.add_tensor(
                f"blk.{layer}.{name}.weight", blocks, raw_dtype=quantization
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure(path: str, threads: int, seconds: float) -> dict[str, float]:
    import llama_cpp

    model = llama_cpp.Llama(
        path,
        n_ctx=CONTEXT,
        n_batch=PROMPT,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )
    prompt = [
        int(i) % model.n_vocab()
        for i in np.random.default_rng(1).integers(0, 500, PROMPT)
    ]
    speeds, tokens = [], []
    for _ in range(3):
        model.reset()
        begin = time.perf_counter()
        model.eval(prompt)
        speeds.append(PROMPT / (time.perf_counter() - begin))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and len(tokens) < CONTEXT - PROMPT - 8:
        begin = time.perf_counter()
        model.eval([7])
        tokens.append(1e3 * (time.perf_counter() - begin))
    return {
        "token_ms": float(np.median(tokens)),
        "token_best_ms": min(tokens),
        "prompt_tokens_per_second": max(speeds),
    }


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:5])
    else:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
