"""Greedy tokens of files that `tersify export gguf` wrote: llama.cpp beside
transformers, on the same weights.

usage: python benchmarks/gguf_tokens.py --model SmolLM2.gguf [--json FILE]

A network of signs in small shapes is written as TQ2_0 and TQ1_0, and --model goes to a
`.terse` file and out again. Where types are small llama.cpp rounds activations to 8 bits,
and its cache to 16; a file of the same weights in F32, with a cache in F32, shows what
these do to the tokens. Needs the packages gguf and xllamacpp (llama.cpp in a wheel).
"""

from __future__ import annotations

import argparse
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

from common import report  # first: it sets what must stand before torch is imported

import torch  # isort: skip

import tersify
from tersify.codec import open as open_terse
from tersify.export.gguf_file import export_gguf
from tersify.lab import language
from tersify.lab.gguf import packed_gguf
from tersify.tensor.blocks import Joined

PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):",
    "Water boils at",
)
TOKENS = 24
SIGNS = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}


def by_llama(
    path: Path, prompts: list[list[int]], *, exact_cache: bool = False
) -> list[list[int]]:
    """What llama.cpp says behind each prompt."""
    import xllamacpp

    given: Any = xllamacpp.CommonParams()
    given.model.path = str(path)
    given.n_ctx, given.n_parallel, given.n_gpu_layers = 256, 1, 0
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = 2
    given.warmup, given.verbosity = False, -1
    if exact_cache:
        f32 = xllamacpp.ggml_type.GGML_TYPE_F32
        given.cache_type_k = given.cache_type_v = f32
        given.flash_attn_type = (
            xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
    server = xllamacpp.Server(given)
    found = []
    for prompt in prompts:
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "max_tokens": TOKENS,
                "temperature": 0,
                "logprobs": 1,
                "ignore_eos": True,
            }
        )
        told = answer["choices"][0]["logprobs"]["content"]
        found.append([each["id"] for each in told])
    return found


def by_transformers(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    found = []
    for prompt in prompts:
        ids = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        found.append(ids[0, len(prompt) :].tolist())
    return found


def same(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """How many tokens agree, of each text until it departs."""
    total = 0
    for one, other in zip(ours, theirs, strict=True):
        pairs = list(zip(one, other, strict=True))
        total += next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    return float(total)


def of_signs(tokenizer: Any) -> Any:
    """A network of signs over the vocabulary of the tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **SIGNS,
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "proj" in name:
                weight.copy_(weight.sign() * (weight.abs() > 0.01) * 0.0625)
            elif weight.ndim == 2:
                weight.copy_((8 * weight).half().float())
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    figures: dict[str, float] = {"tokens": float(TOKENS * len(PROMPTS))}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, tokenizer = language.language_model(given.model)
        prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
        signs = of_signs(tokenizer)
        packed = language.stored(tersify.pack(signs), signs, tokenizer)
        about = packed.metadata[language.METADATA]
        wanted = by_transformers(signs, prompts)
        for kind in ("TQ2_0", "TQ1_0"):
            path = folder / f"{kind}.gguf"
            export_gguf(packed, about, path, ternary=kind)
            figures[f"{kind}_same_tokens"] = same(by_llama(path, prompts), wanted)
            print(kind, figures[f"{kind}_same_tokens"], flush=True)
        tersify.save(packed_gguf(given.model), folder / "model.terse")
        opened = open_terse(folder / "model.terse")
        out = folder / "out.gguf"
        export_gguf(Joined(opened), opened.metadata[language.METADATA], out)
        figures |= {
            "gguf_bytes": float(given.model.stat().st_size),
            "terse_bytes": float(opened.file_bytes),
            "out_bytes": float(out.stat().st_size),
        }
        theirs, wanted = by_llama(out, prompts), by_transformers(model, prompts)
        figures["model_same_tokens"] = same(theirs, wanted)
        figures["model_same_as_its_gguf"] = same(theirs, by_llama(given.model, prompts))
        told = by_llama(out, prompts, exact_cache=True)
        figures["model_f32_cache_same_tokens"] = same(told, wanted)
        floats = folder / "f32.gguf"
        weights = {n: w for n, w in model.state_dict().items() if n != "lm_head.weight"}
        # Every type but F32 meets activations of fewer bits.
        with mock.patch(
            "tersify.export.gguf_file.encoded", lambda rows, _: ("F32", rows)
        ):
            kinds = export_gguf(weights, opened.metadata[language.METADATA], floats)
        assert kinds["F32"] == len(weights), kinds
        told = by_llama(floats, prompts)
        figures["model_f32_weights_same_tokens"] = same(told, wanted)
        told = by_llama(floats, prompts, exact_cache=True)
        figures["model_f32_same_tokens"] = same(told, wanted)
    print(figures, flush=True)
    report(
        "gguf-tokens",
        figures,
        json_path=given.json,
        versions={
            name: version(name) for name in ("torch", "transformers", "xllamacpp")
        },
    )


if __name__ == "__main__":
    main()
