"""A byte-level tokenizer in a GGUF file, where llama.cpp cuts texts as it does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's kinds of tokens
# the expressions of Qwen2's and Llama 3's tokenizers differ in their numbers alone
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EXPRESSIONS = {
    WORDS.replace("DIGITS", r"\p{N}"): "qwen2",
    WORDS.replace("DIGITS", r"\p{N}{1,3}"): "llama-bpe",
}
# llama.cpp takes words whole before it merges
WHOLE_WORDS = ("llama-bpe",)


def add_words(writer: Any, about: Mapping[str, Any]) -> None:
    """The tokenizer: byte pairs over bytes, which is what llama.cpp calls gpt2."""
    stored = json.loads(about["tokenizer"])
    model = stored["model"]
    cut = _way_of_cutting(stored)
    words = dict(model["vocab"])
    kinds = {}
    for each in stored["added_tokens"]:
        words[each["content"]] = each["id"]
        kinds[each["id"]] = CONTROL if each.get("special", True) else USER_DEFINED
    count = about["config"]["vocab_size"]
    by_number = {number: word for word, number in words.items() if number < count}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list([by_number.get(i, f"[unused{i}]") for i in range(count)])
    writer.add_token_types(
        [kinds.get(i, NORMAL if i in by_number else UNUSED) for i in range(count)]
    )
    writer.add_token_merges(
        [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    )
    known = about.get("special_tokens", {})
    numbers = {
        kind: words.get(known.get(f"{kind}_token"))
        for kind in ("bos", "eos", "unk", "pad")
    }
    for kind, number in numbers.items():
        if number is not None:
            getattr(writer, f"add_{kind}_token_id")(number)
    writer.add_add_bos_token(_begins_with_bos(stored, known.get("bos_token")))
    if about.get("chat_template"):
        writer.add_chat_template(about["chat_template"])


def _way_of_cutting(stored: Mapping[str, Any]) -> str:
    """llama.cpp's name of it."""
    model, normalizer = stored["model"], stored.get("normalizer") or {"type": "NFC"}
    parts = list(_parts(stored.get("pre_tokenizer"), "pretokenizers"))
    kinds = [part["type"] for part in parts]
    if model.get("type") != "BPE" or "ByteLevel" not in kinds:
        raise ValueError(
            "the tokenizer is no byte-level BPE, and no other is written as GGUF"
        )
    name = None
    last = parts[-1]
    if last["type"] == "ByteLevel" and not last.get("add_prefix_space"):
        if kinds == ["ByteLevel"] and last.get("use_regex", True):
            name = "gpt-2"
        # every digit by itself
        if kinds == ["Digits", "ByteLevel"] and last.get("use_regex", True):
            name = "smollm" if parts[0].get("individual_digits") else None
        if kinds == ["Split", "ByteLevel"] and not last.get("use_regex", True):
            split = parts[0]
            kept = split["behavior"] == "Isolated" and not split.get("invert")
            pattern = split["pattern"].get("Regex", "")
            name = EXPRESSIONS.get(pattern) if kept else None
    whole = bool(model.get("ignore_merges"))
    if (
        name is None
        or normalizer["type"] != "NFC"
        or whole is not (name in WHOLE_WORDS)
    ):
        raise ValueError(
            "the tokenizer cuts texts in a way that llama.cpp may not have; GPT-2's, SmolLM's, Qwen2's and Llama 3's "
            "are written as GGUF"
        )
    return name


def _begins_with_bos(stored: Mapping[str, Any], bos: str | None) -> bool:
    """Whether the tokenizer puts that token before a text."""
    begins = False
    for part in _parts(stored.get("post_processor"), "processors"):
        if part["type"] == "ByteLevel":
            continue  # moves offsets alone
        pieces = part.get("single", [])
        words = [
            each["SpecialToken"]["id"] for each in pieces if "SpecialToken" in each
        ]
        if (
            part["type"] != "TemplateProcessing"
            or "Sequence" not in pieces[-1]
            or words not in ([], [bos])
        ):
            raise ValueError(
                "the tokenizer adds more to a text than its first token, which is not written as GGUF"
            )
        begins = begins or bool(words)
    return begins


def _parts(step: Mapping[str, Any] | None, many: str) -> Iterator[Mapping[str, Any]]:
    """The steps that one of type Sequence is made of; the step itself; none."""
    if step is None:
        return
    if step["type"] == "Sequence":
        for each in step[many]:
            yield from _parts(each, many)
    else:
        yield step
