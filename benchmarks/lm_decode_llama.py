"""llama.cpp's side of lm_decode.py, for an interpreter that has llama-cpp-python, gguf and numpy, and nothing of ours.

usage: python lm_decode_llama.py write TYPE FILE | time FILE THREADS SECONDS

`write` makes a Llama of BitNet-2B's shapes with random weights of one type; the same bytes serve every layer. `time`
prints milliseconds of a token and tokens a second of a prompt as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

HIDDEN, INNER, LAYERS, HEADS, KEY_HEADS, WIDTH, VOCABULARY, CONTEXT = 2560, 6912, 30, 20, 5, 128, 512, 1024
PROMPT = 128
MATRICES = {
    "attn_q": (HEADS * WIDTH, HIDDEN),
    "attn_k": (KEY_HEADS * WIDTH, HIDDEN),
    "attn_v": (KEY_HEADS * WIDTH, HIDDEN),
    "attn_output": (HIDDEN, HEADS * WIDTH),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}
DELTA = 0.02  # what a step stands for


def random_blocks(kind: str, rows: int, features: int, random: np.random.Generator) -> np.ndarray:
    """Rows of valid blocks of a type: scale and codes as llama.cpp lays them."""
    delta = np.frombuffer(np.float16(DELTA).tobytes(), np.uint8)
    if kind == "TQ2_0":  # 64 bytes of four codes 0..2, then the scale
        trits = np.array(
            [a | b << 2 | c << 4 | d << 6 for a in range(3) for b in range(3) for c in range(3) for d in range(3)]
        )
        blocks = np.empty((rows, features // 256, 66), np.uint8)
        blocks[..., :64] = trits.astype(np.uint8)[random.integers(0, 81, (rows, features // 256, 64), np.uint8)]
        blocks[..., 64:] = delta
    elif kind == "TQ1_0":  # 48 bytes of five, 4 of four, then the scale
        blocks = random.integers(0, 256, (rows, features // 256, 54), np.uint8)
        blocks[..., 52:] = delta
    else:  # Q4_0: the scale, then 16 bytes of two codes
        blocks = random.integers(0, 256, (rows, features // 32, 18), np.uint8)
        blocks[..., :2] = delta
    return blocks.reshape(rows, -1)


def write(kind: str, path: str) -> None:
    import gguf

    random = np.random.default_rng(0)
    writer: Any = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{i}>".encode() for i in range(VOCABULARY)])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([1] * VOCABULARY)
    table = random.standard_normal((VOCABULARY, HIDDEN)).astype(np.float16)
    writer.add_tensor("token_embd.weight", table)
    writer.add_tensor("output.weight", table)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    made = {name: random_blocks(kind, *shape, random) for name, shape in MATRICES.items()}
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(HIDDEN, np.float32))
        for name, blocks in made.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure(path: str, threads: int, seconds: float) -> dict[str, float]:
    import llama_cpp

    model = llama_cpp.Llama(
        path, n_ctx=CONTEXT, n_batch=PROMPT, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    prompt = [int(i) % model.n_vocab() for i in np.random.default_rng(1).integers(0, 500, PROMPT)]
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
    return {"token_ms": float(np.median(tokens)), "prompt_tokens_per_second": max(speeds)}


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3])
    else:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
