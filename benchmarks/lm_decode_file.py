"""From opening a `.terse` file of a language model to its first token: seconds, and
what is resident then.

usage: python benchmarks/lm_decode_file.py write NETWORK FILE | ready NETWORK FILE THREADS

`lm_decode.py --file` calls both. Weights are random signs, a third of them zero, others
in every layer: a file stores equal matrices once. The program's own imports are told
beside, for they are not the file's.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from lm_decode_llama import NETWORKS, Shapes

MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def config_of(shapes: Shapes) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=shapes.hidden,
        intermediate_size=shapes.inner,
        num_hidden_layers=shapes.layers,
        num_attention_heads=shapes.heads,
        num_key_value_heads=shapes.key_heads,
        head_dim=shapes.width,
        vocab_size=shapes.vocabulary,
        tie_word_embeddings=shapes.tied,
    )


def random_signs(rows: int, features: int) -> Any:
    from tersify import CompressedTensor

    # 0, 1 and 2 stand for 0, 1 and −1, a third each.
    return CompressedTensor(
        shape=(rows, features),
        codes=torch.randint(3, (rows, features), dtype=torch.uint8),
        codebook=torch.tensor([0.0, 1.0, -1.0]),
        scale=torch.tensor(0.02),
    )


def write(network: str, path: Path) -> None:
    import tersify
    from tersify import CompressedModel

    shapes = NETWORKS[network]
    torch.manual_seed(0)
    tensors: dict[str, Any] = {}
    for layer in range(shapes.layers):
        at = f"model.layers.{layer}."
        for name, shape in shapes.matrices().items():
            tensors[f"{at}{MODULES[name]}.weight"] = random_signs(*shape)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{norm}.weight"] = torch.rand(shapes.hidden) + 0.5
    tensors["model.norm.weight"] = torch.ones(shapes.hidden)
    tensors["model.embed_tokens.weight"] = torch.randn(shapes.vocabulary, shapes.hidden)
    if not shapes.tied:
        tensors["lm_head.weight"] = torch.randn(shapes.vocabulary, shapes.hidden)
    tersify.save(CompressedModel(tensors), path)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def most_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ready(network: str, path: Path, threads: int) -> dict[str, float]:
    begin = time.perf_counter()
    import transformers

    import tersify
    from tersify.runtime.decode.compile import from_tensors

    shapes = NETWORKS[network]
    config = config_of(shapes)
    # What any model of transformers makes it import.
    with torch.device("meta"):
        transformers.AutoModelForCausalLM.from_config(config)
    imports = time.perf_counter() - begin
    before = resident_bytes()
    begin, busy = time.perf_counter(), time.process_time()
    fast = from_tensors(
        tersify.open(path),
        config,
        precision="int8",
        threads=threads,
        context=1024,
        cache="fp16",
    )
    made = time.perf_counter() - begin
    next(iter(fast.stream([1, 2, 3, 4], max_new_tokens=1)))
    first = time.perf_counter() - begin
    busy = time.process_time() - busy
    return {
        "imports_s": imports,
        "ready_s": made,
        "first_token_s": first,
        "cpu_s": busy,  # of all threads together, which a busy machine hardly changes
        "file_bytes": float(path.stat().st_size),
        "weight_bytes": float(fast.weight_bytes()),
        "cache_bytes": float(fast.cache_bytes()),
        "resident_bytes": float(resident_bytes() - before),
        "most_resident_bytes": float(most_resident_bytes() - before),
    }


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], Path(sys.argv[3]))
    else:
        found = ready(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        print(json.dumps(found))
