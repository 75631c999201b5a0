"""Tokens a second on the GPU of a ternary Llama with BitNet b1.58 2B4T's sizes, by
transformers' `generate`: the bf16 model, and the same compiled.

Both decode with the cache that grows and with the static one, for which transformers
compiles a step into a CUDA graph. Embedding and head stay in bf16 on both sides. The
weights are random, so texts say nothing; how many greedy tokens agree is printed, and
rounding to bf16 decides it. Usage: gpu_generate.py [--json FILE] [--blocks N] [--tokens N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import transformers
from common import report
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import tersify

PROMPT, ROUNDS = 16, 5
CACHES = ("dynamic", "static")


def ternary_llama(blocks: int, device: str) -> Any:
    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=2560,
        intermediate_size=6912,
        num_hidden_layers=blocks,
        num_attention_heads=20,
        num_key_value_heads=5,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        for layer in model.model.modules():
            if isinstance(layer, nn.Linear):
                signs = torch.randint(-1, 2, layer.weight.shape)
                layer.weight.data = (signs * layer.in_features**-0.5).bfloat16()
    return model


def generated(model: Any, ids: Tensor, tokens: int, cache: str) -> Tensor:
    made: Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        cache_implementation=cache,
        pad_token_id=0,
    )
    return made[0, ids.shape[1] :]


def tokens_per_second(model: Any, ids: Tensor, tokens: int, cache: str) -> float:
    """Of the tokens behind the first, so that reading the prompt does not count."""
    times: dict[int, list[float]] = {1: [], tokens: []}
    for _ in range(2):
        generated(model, ids, tokens, cache)  # the first calls compile
    for _ in range(ROUNDS):
        for count, seen in times.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            generated(model, ids, count, cache)
            torch.cuda.synchronize()
            seen.append(time.perf_counter() - start)
    one, all_ = (statistics.median(seen) for seen in times.values())
    return (tokens - 1) / (all_ - one)


def linear_bytes(model: nn.Module) -> int:
    return sum(
        p.numel() * p.element_size()
        for m in model.modules()
        if isinstance(m, nn.Linear)
        for p in m.parameters()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    figures: dict[str, float] = {"blocks": given.blocks, "tokens": given.tokens}
    ids = torch.arange(1, PROMPT + 1, device="cuda")[None]
    model = ternary_llama(given.blocks, "cuda")
    figures["bf16_linear_bytes"] = linear_bytes(model.model)
    texts = {}
    for cache in CACHES:
        figures[f"bf16_{cache}_tokens_per_second"] = tokens_per_second(
            model, ids, given.tokens, cache
        )
        texts[cache] = generated(model, ids, given.tokens, cache)
    before = torch.cuda.memory_allocated()
    networks = {p: tersify.compile(model, precision=p) for p in ("bf16", "int8")}
    torch.cuda.synchronize()
    figures["packed_allocated_bytes"] = (torch.cuda.memory_allocated() - before) / len(
        networks
    )
    for precision, compiled in networks.items():
        figures[f"{precision}_packed_layers"] = len(compiled.plan.packed)
        figures[f"{precision}_packed_bytes"] = compiled.weight_bytes()
        for cache in CACHES:
            key = f"ours_{precision}_{cache}"
            figures[f"{key}_tokens_per_second"] = tokens_per_second(
                compiled, ids, given.tokens, cache
            )
            text = generated(compiled, ids, given.tokens, cache)
            figures[f"{key}_same_tokens"] = int((text == texts[cache]).sum())
            figures[f"{key}_times_as_fast"] = (
                figures[f"{key}_tokens_per_second"]
                / figures[f"bf16_{cache}_tokens_per_second"]
            )
    figures["allocated_fraction_of_bf16"] = (
        figures["packed_allocated_bytes"] / figures["bf16_linear_bytes"]
    )
    for name, value in figures.items():
        print(f"{name:45} {value:,.4g}", flush=True)
    report(
        "gpu-generate",
        figures,
        json_path=given.json,
        versions={
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cuda": torch.version.cuda or "",
        },
        gpus=[torch.cuda.get_device_name()],
    )


if __name__ == "__main__":
    main()
