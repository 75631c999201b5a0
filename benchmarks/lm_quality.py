"""Language models in few bits: perplexity on three kinds of text beside the file's
bytes.

Calibrates on WikiText-2's validation text, on half of the modules of Python's standard
library and on one book; measures on WikiText-2's test text, on the other modules and on
another book. Ratios are to the same model in float32.

usage: python benchmarks/lm_quality.py --model FOLDER|FILE.gguf --wikitext DIR --prose BOOK.txt --prose-test BOOK.txt
       [--stories stories260K.bin] [--windows 32] [--test-windows 24] [--folder DIR] [--device cpu] [--bf16] [--quick]
       [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from common import report  # first: it sets what must stand before torch is imported

import torch  # isort: skip
from llama2c import load_llama2c
from torch import Tensor, nn

import tersify
from tersify.calibration import Calibration
from tersify.compensated import Compensation, compensate_, next_token_loss
from tersify.compensated.rates import entropy_bits_by_scale
from tersify.compensated.recipes import load_compensation
from tersify.lab import language
from tersify.tensor import CompressedModel

RECIPES = ("lm-3bit", "lm-2bit", "lm-table4")
LEAST_MODULE_BYTES = 8000
STORY_TOKENS = 100


def library(*, even: bool) -> str:
    """Every second larger module of Python's standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    modules = sorted(
        path for path in folder.glob("*.py") if path.stat().st_size > LEAST_MODULE_BYTES
    )
    return "\n".join(
        path.read_text(errors="replace") for path in modules[0 if even else 1 :: 2]
    )


def texts(given: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """What calibrates, and what measures."""
    read = lambda path: path.read_text(errors="replace")  # noqa: E731
    wiki = read(given.wikitext / "wikitext2_valid.txt")
    return (
        [wiki, library(even=True), read(given.prose)],
        {
            "wikitext": read(given.wikitext / "wikitext2_test.txt"),
            "code": library(even=False),
            "prose": read(given.prose_test),
        },
    )


def predicted_bytes(packed: CompressedModel) -> float:
    """Of the codes alone: the entropy of each matrix in the contexts of its rows and
    columns.
    """
    held = [t for t in packed.compressed().values() if t.codebook is not None]
    return (
        sum(t.numel() * entropy_bits_by_scale(t.codebook[t.codes.int()]) for t in held)
        / 8
    )  # type: ignore[index]


def code_bytes(path: Path) -> int:
    """What the codes take in the file."""
    file = tersify.open(path)
    groups = {
        span[0]
        for e in file.directory.entries
        if e.codebook
        for span in file.contents.spans(e, "codes")
    }
    return sum(file.group_bytes(group) for group in groups)


def measured(
    model: nn.Module, tokenizer: Any, given: argparse.Namespace, folder: Path
) -> dict[str, float]:
    calibrating, measuring = texts(given)
    ids = [language.tokens_of(tokenizer, text) for text in calibrating]
    shares = (2, 1, 1)  # of windows: as much of the first as of the others together
    cut = torch.cat(
        [
            language.windows_of(each, given.windows * share // sum(shares))
            for each, share in zip(ids, shares, strict=True)
        ]
    )
    batches = [
        (window[None].to(given.device), window[None].to(given.device)) for window in cut
    ]
    tests = {
        name: language.windows_of(
            language.tokens_of(tokenizer, text), given.test_windows
        )
        for name, text in measuring.items()
    }

    def perplexities(net: nn.Module) -> dict[str, float]:
        with torch.autocast(given.device, torch.bfloat16, enabled=given.bf16):
            return {
                name: language.perplexity(net, windows)
                for name, windows in tests.items()
            }

    dense = perplexities(model)
    print(
        "float32:", {name: round(value, 3) for name, value in dense.items()}, flush=True
    )
    figures = {f"dense_{name}": value for name, value in dense.items()}
    weights = sum(parameter.numel() for parameter in model.parameters())
    frequencies = language.frequencies_of(ids, model.config.vocab_size)  # type: ignore[union-attr]
    for name in RECIPES[:1] if given.quick else RECIPES:
        net = copy.deepcopy(model)
        packed = compensate_(
            net,
            load_compensation(name),
            calibration=Calibration(batches, next_token_loss),
            frequencies=frequencies,
            folder=folder,
            bf16=given.bf16,
        )
        path = folder / f"{name}.terse"
        size = tersify.save(language.stored(packed, model, tokenizer), path)
        tersify.load(path, into=net.cpu())
        label = name.replace("-", "_")
        found = perplexities(net.to(given.device))
        figures |= {
            f"{label}_{kind}_ratio": value / dense[kind]
            for kind, value in found.items()
        }
        figures |= {
            f"{label}_file_bytes": float(size),
            f"{label}_bits_a_weight": 8 * size / weights,
        }
        figures[f"{label}_codes_over_entropy_percent"] = 100 * (
            code_bytes(path) / predicted_bytes(packed) - 1
        )
        print(
            {
                key: round(value, 4)
                for key, value in figures.items()
                if key.startswith(label)
            },
            flush=True,
        )
    return figures


@torch.no_grad()
def told(model: nn.Module, tokens: int, *, chooses: bool, stories: int = 1) -> Tensor:
    """Stories of so many tokens: the likeliest tokens, or drawn ones."""
    ids = torch.ones(stories, 1, dtype=torch.long)
    for _ in range(tokens):
        logits = model(ids).logits[:, -1]
        ids = torch.cat(
            [
                ids,
                logits.argmax(-1, keepdim=True)
                if chooses
                else logits.softmax(-1).multinomial(1),
            ],
            1,
        )
    return ids


def small_story(path: Path, folder: Path) -> dict[str, float]:
    """stories260K in 4-bit tables, calibrated on its own stories: bytes, and how long
    its story stays the same.
    """
    model = load_llama2c(path)
    torch.manual_seed(0)
    drawn = told(model, 200, chooses=False, stories=64)
    before = told(model, STORY_TOKENS, chooses=True)
    batches = Calibration([(each, each) for each in drawn.split(8)], next_token_loss)
    packed = compensate_(
        model, Compensation(code="table", bits=4.0), calibration=batches
    )
    size = tersify.save(packed, folder / "stories.terse")
    after = told(model, STORY_TOKENS, chooses=True)
    differ = (before != after)[0].nonzero()
    same = int(differ[0]) - 1 if len(differ) else STORY_TOKENS
    print(f"stories260K: {size:,} bytes, the same story for {same} tokens", flush=True)
    return {
        "stories260k_table4_file_bytes": float(size),
        "stories260k_table4_same_tokens": float(same),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--wikitext", type=Path)
    parser.add_argument("--prose", type=Path)
    parser.add_argument("--prose-test", type=Path)
    parser.add_argument("--stories", type=Path)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--test-windows", type=int, default=24)
    parser.add_argument(
        "--folder",
        type=Path,
        help="keeps statistics and files; a run that was stopped goes on there",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.model is None and given.stories is None:
        parser.error("give --model, --stories or both")
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        figures: dict[str, float] = {}
        if given.stories is not None:
            figures |= small_story(given.stories, folder)
        if given.model is not None:
            model, tokenizer = language.language_model(given.model)
            figures |= measured(model.to(given.device), tokenizer, given, folder)
    report(
        "lm-quality",
        figures,
        json_path=given.json,
        versions={"torch": torch.__version__},
        windows=given.windows,
        test_windows=given.test_windows,
        length=language.LENGTH,
        bf16=given.bf16,
    )


if __name__ == "__main__":
    main()
