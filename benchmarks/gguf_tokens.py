"""Greedy tokens of files that `tersify export gguf` wrote: llama.cpp beside
transformers, on the same weights.

usage: python benchmarks/gguf_tokens.py --model SmolLM2.gguf [--json FILE]

A network in small shapes, of signs or of 4-bit blocks, is written as TQ2_0, TQ1_0 and
Q4_0. llama.cpp's own quantizer makes another file of the same weights, and llama.cpp
reads both. Where types are small llama.cpp rounds activations to 8 bits, and its cache
to 16: transformers with activations that are rounded so, and a file of the same weights
in F32, show what that does to the tokens. --model goes to a `.terse` file and out again.
Needs the packages gguf and xllamacpp (llama.cpp in a wheel).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

from common import report  # first: it sets what must stand before torch is imported

import torch  # isort: skip

import gguf
import numpy as np
from torch import Tensor, nn

import tersify
from tersify.codec import open as open_terse
from tersify.export.gguf_blocks import encoded
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
KINDS = ("TQ2_0", "TQ1_0", "Q4_0")
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}


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


def by_llamas_quantizer(rows: Any, kind: str) -> Any:
    """The blocks that llama.cpp itself makes of the numbers."""
    import xllamacpp

    library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
    quantize = library.ggml_quantize_chunk
    whole, place = ctypes.c_int64, ctypes.c_void_p
    quantize.argtypes = [ctypes.c_int, place, place, whole, whole, whole, place]
    quantize.restype = ctypes.c_size_t
    number = gguf.GGMLQuantizationType[kind]
    columns, size = gguf.GGML_QUANT_SIZES[number]
    rows = np.ascontiguousarray(rows, np.float32)
    made = np.zeros((len(rows), rows.shape[1] // columns * size), np.uint8)
    given = rows.ctypes.data, made.ctypes.data, 0, *rows.shape, None
    assert quantize(int(number), *given) == made.nbytes
    return made


def small_network(tokenizer: Any, kind: str) -> Any:
    """A network over the vocabulary of the tokenizer whose projections `kind` holds
    exactly.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **SMALL,
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "proj" in name and kind == "Q4_0":
                blocks = by_llamas_quantizer(weight.numpy(), kind)
                number = gguf.GGMLQuantizationType[kind]
                weight.copy_(torch.from_numpy(gguf.quants.dequantize(blocks, number)))
            elif "proj" in name:
                weight.copy_(weight.sign() * (weight.abs() > 0.01) * 0.0625)
            elif weight.ndim == 2:
                weight.copy_((8 * weight).half().float())
    return model


def in_8_bits(x: Tensor, kind: str) -> Tensor:
    """Activations as llama.cpp rounds them before it multiplies such a type: Q8_K for
    signs, Q8_0 for Q4_0.
    """
    size = 32 if kind == "Q4_0" else 256
    blocks = x.unflatten(-1, (-1, size))
    if kind == "Q4_0":
        step = blocks.abs().amax(-1, keepdim=True) / 127
        whole = (blocks / step.clamp(min=1e-30)).round()
        return (whole * step.half().float()).flatten(-2)
    at = blocks.abs().argmax(-1, keepdim=True)
    step = blocks.gather(-1, at) / -127
    whole = (blocks / torch.where(step == 0, 1.0, step)).round().clamp(max=127)
    return (whole * step).flatten(-2)


@contextlib.contextmanager
def rounded_activations(model: nn.Module, kind: str) -> Iterator[None]:
    """Every linear layer meets what it meets in llama.cpp; the head is in F16, and so
    are its inputs.
    """

    def round_inputs(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        is_head = module is model.get_submodule("lm_head")
        return (given[0].half().float() if is_head else in_8_bits(given[0], kind),)

    hooks = [
        module.register_forward_pre_hook(round_inputs)
        for module in model.modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def written(
    folder: Path, packed: Any, name: str, kind: str, encoder: Any = encoded
) -> Path:
    path = folder / f"{name}.gguf"
    ternary = kind if kind.startswith("TQ") else "TQ2_0"
    about = packed.metadata[language.METADATA]
    with mock.patch("tersify.export.gguf_file.encoded", encoder):
        export_gguf(packed, about, path, ternary=ternary)
    return path


def of_kind(
    folder: Path, tokenizer: Any, prompts: list[list[int]], kind: str
) -> dict[str, float]:
    """Our file of a type beside llama.cpp's own of the same weights, and beside
    transformers.
    """
    model = small_network(tokenizer, kind)
    packed = language.stored(tersify.pack(model), model, tokenizer)

    def theirs(rows: Any, ternary: str) -> tuple[str, Any]:
        found, data = encoded(rows, ternary)
        return found, by_llamas_quantizer(rows, kind) if found == kind else data

    ours = written(folder, packed, "ours", kind)
    other = written(folder, packed, "theirs", kind, theirs)
    floats = written(folder, packed, "f32", kind, lambda rows, _: ("F32", rows))
    kinds = [tensor.tensor_type.name for tensor in gguf.GGUFReader(ours).tensors]
    assert kinds.count(kind) == 7 * SMALL["num_hidden_layers"], kinds
    told = by_llama(ours, prompts)
    exact = by_llama(ours, prompts, exact_cache=True)
    wanted = by_transformers(model, prompts)
    with rounded_activations(model, kind):
        rounded = by_transformers(model, prompts)
    return {
        f"{kind}_same_bytes_as_llamas_quantizer": float(
            ours.read_bytes() == other.read_bytes()
        ),
        f"{kind}_same_as_llamas_quantizer": same(told, by_llama(other, prompts)),
        f"{kind}_same_tokens": same(told, wanted),
        f"{kind}_f32_cache_same_tokens": same(exact, wanted),
        f"{kind}_f32_cache_same_as_rounded_activations": same(exact, rounded),
        f"{kind}_f32_weights_same_tokens": same(
            by_llama(floats, prompts, exact_cache=True), wanted
        ),
    }


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
        for kind in KINDS:
            figures |= of_kind(folder, tokenizer, prompts, kind)
            print(figures, flush=True)
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
