"""Language models by their files: a folder of transformers, a GGUF or a `.terse` file →
a decoder and its tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tersify import codec
from tersify.lab.language import (
    described,
    generation_of,
    language_model,
    load_language_model,
)
from tersify.runtime import compile as compile_model
from tersify.runtime.decode.architecture import UnknownModelError
from tersify.runtime.decode.compile import from_tensors, say_torch_runs_it
from tersify.runtime.decode.language_model import LanguageModel
from tersify.runtime.decode.streaming import Streaming
from tersify.runtime.decode.torch_stream import TorchLanguageModel
from tersify.tensor.blocks import Joined

# what a tokenizer writes for a character whose last bytes are still to come
UNFINISHED = "�"


def open_text_model(
    path: Path,
    *,
    precision: str,
    threads: int | None,
    context: int | None,
    **limits: Any,
) -> tuple[Streaming, Any]:
    """The decoder and the tokenizer; torch runs a model without kernels, with a warning
    that says why.

    Of a `.terse` file the packed weights alone are read: no module of them is built
    where the decoder knows the model.
    """
    settings: dict[str, Any] = {
        "precision": precision,
        "threads": threads,
        "context": context,
    }
    if path.suffix == ".terse":
        file = codec.open(path, **limits)
        config, tokenizer = described(file.metadata, path)
        try:
            settings["generation"] = generation_of(file.metadata)
            return from_tensors(Joined(file), config, **settings), tokenizer
        except UnknownModelError as reason:
            say_torch_runs_it(reason)
        model, tokenizer = load_language_model(path, **limits)
        return TorchLanguageModel(model, context), tokenizer
    model, tokenizer = language_model(path)
    made = compile_model(model, **settings)
    if isinstance(made, LanguageModel):
        return made, tokenizer
    return TorchLanguageModel(model, context), tokenizer


def ends_of(model: Streaming, tokenizer: Any) -> list[int]:
    """The tokens that end a text."""
    settings = getattr(model, "generation_config", None)
    ends = getattr(settings, "eos_token_id", None)
    if ends is None:
        ends = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else []
    return [ends] if isinstance(ends, int) else list(ends)


def pieces(tokens: Iterator[int], tokenizer: Any) -> Iterator[str]:
    """The text of the tokens as it grows; a character is told when all its bytes are
    there.
    """
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
