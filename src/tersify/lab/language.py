"""Causal language models of transformers: read, cut into windows, measured, and stored
with their tokenizer.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tersify
from tersify.compensated import next_token_loss
from tersify.lab.gguf_reader import read_gguf
from tersify.lab.whole_models import check_all_read, check_whole
from tersify.modes import eval_mode
from tersify.tensor import CompressedModel
from tersify.tensor.blocks import METADATA as BLOCKS
from tersify.tensor.blocks import joined
from tersify.tensor.model import load_state

# in the metadata of a file: the configuration and the tokenizer
METADATA = "language_model"
LENGTH = 512
# ways of quantizing whose models have plain layers of floats
PLAIN_METHODS = ("tersify", "gguf")


def language_model(path: str | Path) -> tuple[Any, Any]:
    """A causal model in float32 and its tokenizer, from a folder of transformers or a
    GGUF file.
    """
    transformers = _transformers()
    path = Path(path)
    reader = None
    if path.suffix == ".gguf" and path.is_file():
        reader = read_gguf(path)  # transformers tells less of a damaged file
        where: dict[str, Any] = {
            "pretrained_model_name_or_path": str(path.parent),
            "gguf_file": path.name,
        }
    elif (path / "config.json").is_file():
        where = {"pretrained_model_name_or_path": str(path)}
    else:
        raise ValueError(
            f"{str(path)!r} is no folder with a config.json and no GGUF file; give a downloaded model"
        )
    with _told_of(path, "causal model"):
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            **where,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `check_whole` names them
        )
    check_whole(path, found)
    if reader is not None:
        check_all_read(path, reader, model)
    with _told_of(path, "tokenizer"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    return model.eval(), tokenizer


@contextlib.contextmanager
def _told_of(path: Path, what: str) -> Iterator[None]:
    """What the packages below say of a damaged or unknown folder, in one sentence: each
    has exceptions of its own.
    """
    try:
        yield
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"{str(path)!r} holds no {what}: {said}") from None


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "language models need the package transformers; pip install 'tersify[hf]'"
        ) from None
    return transformers


def tokens_of(tokenizer: Any, text: str) -> Tensor:
    """The numbers of a text's tokens."""
    ids: Tensor = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
    return ids


def windows_of(ids: Tensor, count: int, length: int = LENGTH) -> Tensor:
    """`count` windows (count × length), evenly from the whole text; fewer where it is
    short.
    """
    whole = len(ids) // length
    if not whole:
        raise ValueError(
            f"a text of {len(ids)} tokens has no window of {length}; give more text or shorter windows"
        )
    picked = torch.linspace(0, whole - 1, min(count, whole)).round().long()
    return ids[: whole * length].view(whole, length)[picked]


def shuffled_batches(
    windows: Tensor, size: int, device: str = "cpu"
) -> list[tuple[Tensor, None]]:
    """Batches for tuning, of mixed texts and all of one size; without targets."""
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(1))
    size = min(size, len(windows))
    whole = len(windows) // size * size
    return [(part.to(device), None) for part in windows[order[:whole]].split(size)]


@torch.no_grad()
def perplexity(model: nn.Module, windows: Tensor) -> float:
    """Of each token behind those before it in its window."""
    device = next(model.parameters()).device
    with eval_mode(model):
        losses = [
            float(next_token_loss(model(w[None].to(device)), w[None].to(device)))
            for w in windows
        ]
    return math.exp(sum(losses) / (len(windows) * (windows.shape[1] - 1)))


def check_storable(model: Any, tokenizer: Any) -> None:
    """Raises where a file could not hold what the model computes or how it cuts texts."""
    about = model.config.to_dict().get("quantization_config") or {}
    method = about.get("quant_method", "tersify")
    method = getattr(method, "value", method)  # some are of an enumeration
    if method not in PLAIN_METHODS:
        raise ValueError(
            f"the model is quantized by {method!r}, and a file holds no layers of that kind; "
            "give the model as it was before, or run it as it is"
        )
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(
            f"a {type(tokenizer).__name__} is no tokenizer of the package tokenizers, and a file holds no other; "
            "convert it to a fast one"
        )


def stored(packed: CompressedModel, model: Any, tokenizer: Any) -> CompressedModel:
    """The packed model with what `load_language_model` needs beside the weights."""
    check_storable(model, tokenizer)
    config = {
        key: value
        for key, value in model.config.to_dict().items()
        if key != "quantization_config"
    }
    about = {
        "config": _plain(config),
        "generation_config": _plain(model.generation_config.to_diff_dict()),
        "tokenizer": json.dumps(
            json.loads(tokenizer.backend_tokenizer.to_str()), separators=(",", ":")
        ),
        "special_tokens": {
            key: str(value) for key, value in tokenizer.special_tokens_map.items()
        },
        "chat_template": tokenizer.chat_template,
    }
    return CompressedModel(
        dict(packed),
        aliases=packed.aliases,
        recipe=packed.recipe,
        metadata={**packed.metadata, METADATA: about},
    )


def _plain(settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(settings, default=str))


def generation_of(metadata: Mapping[str, Any]) -> Any:
    """How the model of a file goes on from texts, such as what ends them; None where the
    file does not say.
    """
    about = metadata[METADATA].get("generation_config")
    if not isinstance(about, dict):
        return None
    return _transformers().GenerationConfig.from_dict(about)


def described(metadata: Mapping[str, Any], path: str | Path) -> tuple[Any, Any]:
    """The configuration and the tokenizer that a file's metadata tell of; no code is
    run.
    """
    about = metadata.get(METADATA)
    if not isinstance(about, dict) or not {
        "config",
        "tokenizer",
        "special_tokens",
    } <= set(about):
        raise ValueError(
            f"{path} holds no language model; tersify compress-lm writes such files"
        )
    transformers = _transformers()
    import tokenizers

    settings = dict(about["config"])
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(about["tokenizer"]),
        **about["special_tokens"],
    )
    tokenizer.chat_template = about.get("chat_template")
    return config, tokenizer


def load_language_model(file: str | Path, **limits: Any) -> tuple[Any, Any]:
    """The causal model of a `.terse` file that `tersify compress-lm` wrote, and its
    tokenizer.
    """
    opened = tersify.open(file, **limits)
    config, tokenizer = described(opened.metadata, file)
    model = _transformers().AutoModelForCausalLM.from_config(
        config, dtype=torch.float32
    )
    model.generation_config = generation_of(opened.metadata) or model.generation_config
    if opened.metadata.get(BLOCKS):
        return load_state(joined(opened.read()), model).eval(), tokenizer
    return tersify.load(file, into=model, **limits).eval(), tokenizer


def frequencies_of(texts: Sequence[Tensor], tokens: int) -> Tensor:
    """How often each token occurs in the texts, each text counted alike."""
    most = max(int(ids.max()) for ids in texts)
    if most >= tokens:
        raise ValueError(
            f"the tokenizer makes token {most}, and the model has {tokens:,}; give the tokenizer of this model"
        )
    fractions = [
        torch.bincount(ids, minlength=tokens).float() / len(ids) for ids in texts
    ]
    longest = max(map(len, texts))
    return torch.stack(fractions).mean(0) * longest
