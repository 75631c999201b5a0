"""litespark-inference's side of lm_decode.py, for an interpreter that has it and numpy,
and nothing of ours.

usage: python lm_decode_litespark.py NETWORK THREADS SECONDS

It comes as source alone and builds its AVX-512 kernels: `pip install --no-deps
litespark-inference numpy` in an environment of its own. Its model of BitNet is filled
with random signs, a third of them zero, a scale for each matrix, and the same bytes
serve no two layers. Prints milliseconds of a token and tokens a second of a prompt as
JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Before numpy is imported, which starts threads. Those of its kernels would else
    # spin while Python has the CPU; on two threads waiting is faster.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = sys.argv[2]
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from lm_decode_llama import CONTEXT, DELTA, NETWORKS, PROMPT, Shapes

# More tokens at a time, and its product returns without computing (LSPK_MAX_T in its
# kernels/x86_64/matmul_lut_avx512_extern_c.cpp).
CHUNK = 64
FIELDS = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def bfloats(values: np.ndarray) -> np.ndarray:
    """The upper halves of floats."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def random_model(shapes: Shapes) -> Any:
    from litespark_inference.torchless import model as theirs

    random = np.random.default_rng(0)
    codes = np.arange(81)
    # Bytes of four codes 0..2: the digits of 0..80 to the base 3, two bits each.
    fours = sum((codes // 3**digit % 3) << 2 * digit for digit in range(4))
    bytes_of_four = fours.astype(np.uint8)

    def projection(rows: int, features: int) -> Any:
        drawn = random.integers(0, 81, (rows, features // 4), np.uint8)
        return theirs.PackedProjection(
            w_packed=bytes_of_four[drawn],
            w_sum=np.zeros(rows, np.int32),
            scale=DELTA,
            in_features=features,
            out_features=rows,
        )

    def layer() -> Any:
        ones, inner = bfloats(np.ones(shapes.hidden)), bfloats(np.ones(shapes.inner))
        sizes = shapes.matrices()
        matrices = {name: projection(*sizes[of]) for name, of in FIELDS.items()}
        norms = ("input_norm", "post_attn_norm", "attn_sub_norm")
        return theirs.PackedLayer(
            **matrices, **dict.fromkeys(norms, ones), ffn_sub_norm=inner
        )

    return theirs.PackedBitNetModel(
        config=theirs.BitNetConfig(
            shapes.hidden,
            shapes.layers,
            shapes.heads,
            shapes.key_heads,
            shapes.inner,
            shapes.vocabulary,
            CONTEXT,
            1e-5,
            5e5,
        ),
        embed_tokens=bfloats(
            random.standard_normal((shapes.vocabulary, shapes.hidden))
        ),
        final_norm=bfloats(np.ones(shapes.hidden)),
        layers=[layer() for _ in range(shapes.layers)],
    )


def read_prompt(model: Any, prompt: list[int], state: Any) -> None:
    from litespark_inference.torchless import runtime

    for begin in range(0, len(prompt), CHUNK):
        logits = runtime.forward_prefill(model, state, prompt[begin : begin + CHUNK])
    _check(logits)


def _check(logits: np.ndarray) -> None:
    # A product that returned early leaves what the memory held.
    if not np.isfinite(logits).all() or not np.ptp(logits) > 0:
        raise SystemExit("litespark-inference gave logits that are no numbers")


def check_chunks(model: Any, prompt: list[int]) -> None:
    """A chunk computes what single tokens do, or its time would be no time of theirs."""
    from litespark_inference.torchless import runtime

    together, state = (runtime.init_state(model, CONTEXT) for _ in range(2))
    read_prompt(model, prompt, together)
    for token in prompt:
        logits = runtime.forward_one(model, state, token)
    last = runtime.forward_one(model, state, 7)
    _check(logits)
    given = runtime.forward_one(model, together, 7)
    error = float(np.abs(given - last).max() / np.abs(last).max())
    if not error < 0.1:
        raise SystemExit(f"a prompt in chunks gives logits that differ by {error:.2f}")


def measure(network: str, seconds: float) -> dict[str, float]:
    from litespark_inference.torchless import runtime

    model = random_model(NETWORKS[network])
    prompt = [int(i) for i in np.random.default_rng(1).integers(0, 500, PROMPT)]
    check_chunks(model, prompt[: CHUNK + 2])
    speeds, tokens = [], []
    for _ in range(3):
        state = runtime.init_state(model, CONTEXT)
        begin = time.perf_counter()
        read_prompt(model, prompt, state)
        speeds.append(PROMPT / (time.perf_counter() - begin))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and len(tokens) < CONTEXT - PROMPT - 8:
        begin = time.perf_counter()
        logits = runtime.forward_one(model, state, 7)
        tokens.append(1e3 * (time.perf_counter() - begin))
    _check(logits)
    return {
        "token_ms": float(np.median(tokens)),
        "token_best_ms": min(tokens),
        "prompt_tokens_per_second": max(speeds),
        "weight_bytes": float(model.tensor_bytes()["packed_weights"]),
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], float(sys.argv[3]))))
