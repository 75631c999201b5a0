"""Language models by their files: a folder of transformers, a GGUF or a `.terse` file → a decoder and its tokenizer."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tersify import codec
from tersify.runtime import compile as compile_model
from tersify.runtime.decode.compile import from_tensors
from tersify.runtime.decode.language_model import LanguageModel

METADATA = "language_model"  # in the metadata of a file: the configuration and the tokenizer
UNFINISHED = "�"  # what a tokenizer writes for a character whose last bytes are still to come


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"language models need the package {name}, which is missing; pip install {name}") from None


def open_text_model(
    path: Path, *, precision: str, threads: int | None, context: int | None, **limits: Any
) -> tuple[LanguageModel, Any]:
    """The decoder and the tokenizer; a model without kernels is refused."""
    if path.suffix == ".terse":
        return _from_terse(path, precision=precision, threads=threads, context=context, **limits)
    transformers = _package("transformers")
    if path.suffix == ".gguf" and path.is_file():
        where: dict[str, Any] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    elif (path / "config.json").is_file():
        where = {"pretrained_model_name_or_path": str(path)}
    else:
        raise ValueError(f"{path} is no .terse file, no GGUF file and no folder with a config.json")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} holds no causal model: {str(error).splitlines()[0]}") from None
    made = compile_model(model, precision=precision, threads=threads, context=context, strict=True)
    assert isinstance(made, LanguageModel)
    return made, tokenizer


def _from_terse(
    path: Path, *, precision: str, threads: int | None, context: int | None, **limits: Any
) -> tuple[LanguageModel, Any]:
    """From the packed weights alone: no module of them is built, and no code of the file runs."""
    file = codec.open(path, **limits)
    about = file.metadata.get(METADATA)
    if not isinstance(about, dict) or not {"config", "tokenizer", "special_tokens"} <= set(about):
        raise ValueError(f"{path} holds no language model with its configuration and its tokenizer")
    transformers, tokenizers = _package("transformers"), _package("tokenizers")
    settings = dict(about["config"])
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(about["tokenizer"]), **about["special_tokens"]
    )
    tokenizer.chat_template = about.get("chat_template")
    return from_tensors(file, config, precision=precision, threads=threads, context=context), tokenizer


def ends_of(model: LanguageModel, tokenizer: Any) -> list[int]:
    """The tokens that end a text."""
    settings = getattr(model, "generation_config", None)
    ends = getattr(settings, "eos_token_id", None)
    if ends is None:
        ends = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else []
    return [ends] if isinstance(ends, int) else list(ends)


def pieces(tokens: Iterator[int], tokenizer: Any) -> Iterator[str]:
    """The text of the tokens as it grows; a character is told when all its bytes are there."""
    seen: list[int] = []
    told = 0
    for token in tokens:
        seen.append(token)
        text = tokenizer.decode(seen, skip_special_tokens=True)
        if text.endswith(UNFINISHED) or len(text) <= told:
            continue
        yield text[told:]
        told = len(text)
    text = tokenizer.decode(seen, skip_special_tokens=True)
    if len(text) > told:
        yield text[told:]
