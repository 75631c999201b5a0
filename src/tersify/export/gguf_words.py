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
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
WHOLE_BYTES = {**BYTES, "use_regex": False}
KNOWN_PROCESSORS = {"ByteLevel", "TemplateProcessing"}  # the first moves offsets alone
DIGITS = {"type": "Digits", "individual_digits": True}


def _split(digits: str) -> dict[str, Any]:
    pattern = {"Regex": WORDS.replace("DIGITS", digits)}
    return {
        "type": "Split",
        "pattern": pattern,
        "behavior": "Isolated",
        "invert": False,
    }


# llama.cpp's names; the steps, and whether words are taken whole before merges
WAYS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "gpt-2": ([BYTES], False),
    "smollm": ([DIGITS, BYTES], False),
    "qwen2": ([_split(r"\p{N}"), WHOLE_BYTES], False),
    "llama-bpe": ([_split(r"\p{N}{1,3}"), WHOLE_BYTES], True),
}


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
    for kind in ("bos", "eos", "unk", "pad"):
        number = words.get(known.get(f"{kind}_token"))
        if number is not None:
            getattr(writer, f"add_{kind}_token_id")(number)
    writer.add_add_bos_token(_begins_with_bos(stored, known.get("bos_token")))
    if about.get("chat_template"):
        writer.add_chat_template(about["chat_template"])


def _way_of_cutting(stored: Mapping[str, Any]) -> str:
    """llama.cpp's name of it."""
    model, normalizer = stored["model"], stored.get("normalizer") or {"type": "NFC"}
    # that moves offsets alone
    steps = [
        {key: value for key, value in step.items() if key != "trim_offsets"}
        for step in _parts(stored.get("pre_tokenizer"), "pretokenizers")
    ]
    if model.get("type") != "BPE" or "ByteLevel" not in [s["type"] for s in steps]:
        raise ValueError(
            "the tokenizer is no byte-level BPE, and no other is written as GGUF"
        )
    found = (steps, bool(model.get("ignore_merges")))
    names = [name for name, way in WAYS.items() if way == found]
    if not names or normalizer["type"] != "NFC":
        raise ValueError(
            "the tokenizer cuts texts in a way that llama.cpp may not have; GPT-2's, SmolLM's, Qwen2's and Llama 3's "
            "are written as GGUF"
        )
    return names[0]


def _begins_with_bos(stored: Mapping[str, Any], bos: str | None) -> bool:
    """Whether the tokenizer puts that token before a text."""
    parts = list(_parts(stored.get("post_processor"), "processors"))
    # "A" is the text
    added = [
        next(iter(piece.values()))["id"]
        for part in parts
        for piece in part.get("single", [])
    ]
    kinds = {part["type"] for part in parts}
    if kinds - KNOWN_PROCESSORS or added not in ([], ["A"], [bos, "A"]):
        raise ValueError(
            "the tokenizer adds more to a text than its first token, which is not written as GGUF"
        )
    return bool(added[1:])


def _parts(step: Mapping[str, Any] | None, many: str) -> Iterator[Mapping[str, Any]]:
    """The steps that one of type Sequence is made of; the step itself; none."""
    if step is None:
        return
    if step["type"] == "Sequence":
        for each in step[many]:
            yield from _parts(each, many)
    else:
        yield step
