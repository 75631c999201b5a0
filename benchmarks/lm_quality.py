"""Language models in few bits: perplexity on three kinds of text beside the file's
bytes.

Calibrates and tunes on four fifths of WikiText-2's validation text, on modules of
Python's standard library, on two books and on text of the model's own; settings were
chosen on the rest of these (held out); measures on WikiText-2's test text, on other
modules and on another book. Ratios are to the same model in float32.

usage: python benchmarks/lm_quality.py --model FOLDER|FILE.gguf --wikitext DIR --books DIR
       [--folder DIR] [--device cpu] [--bf16] [--quick] [--json FILE] [--recipes NAME ...]
       [--statistics 112] [--own 224] [--batch 16] [--steps N] [--rate R]

--books holds alice29.txt, asyoulik.txt, lcet10.txt and plrabn12.txt of the Canterbury
corpus. With --device cuda --bf16 it takes minutes; on a CPU hours, unless the last
options ask for less: windows of each kind for the statistics, windows of the model's own
text, windows in a batch of the tuning, and its steps and their rate where a recipe's are
not wanted. What measures stays as it is.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common import report  # first: it sets what must stand before torch is imported

import torch  # isort: skip
from lm_texts import KINDS, own_text, texts
from torch import Tensor, nn

import tersify
from tersify.calibration import Calibration
from tersify.compensated import Compensation, compensate_, next_token_loss
from tersify.compensated.rates import entropy_bits_by_scale
from tersify.compensated.recipes import load_compensation
from tersify.lab import language
from tersify.tensor import CompressedModel

RECIPES = ("lm-3bit", "lm-2bit", "lm-table4")


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How many windows of text each step takes."""

    statistics: int = 112  # of each kind
    tuning: int = 420  # of each kind
    own: int = 224
    held_out: int = 16  # of each kind
    test: int = 24  # of each kind


QUICK = Windows(statistics=1, tuning=1, own=1, held_out=1, test=1)


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
    model: Any,
    tokenizer: Any,
    given: argparse.Namespace,
    folder: Path,
    write: Callable[[dict[str, float]], None],
) -> None:
    """`write` gets the figures of all recipes so far."""
    counts = windows_of(given)
    kinds = texts(given.wikitext, given.books)
    ids = {
        kind: language.tokens_of(tokenizer, kinds[kind].calibrating) for kind in KINDS
    }
    tuning = [language.windows_of(ids[kind], counts.tuning) for kind in KINDS]
    cut = torch.cat([_evenly(windows, counts.statistics) for windows in tuning])
    batches = [(part.to(given.device),) * 2 for part in cut.split(4)]
    starts = torch.cat([ids["prose"], ids["wikitext"]])
    if counts.own:
        tuning.append(own_text(model, starts, counts.own, bf16=given.bf16))
    mixed = language.shuffled_batches(torch.cat(tuning), given.batch, given.device)
    measuring = {
        f"{part}_{kind}": language.windows_of(
            language.tokens_of(tokenizer, getattr(kinds[kind], part)), count
        )
        for part, count in (("held_out", counts.held_out), ("test", counts.test))
        for kind in KINDS
    }

    def perplexities(net: nn.Module) -> dict[str, float]:
        return {
            name: language.perplexity(net, windows)
            for name, windows in measuring.items()
        }

    dense = perplexities(model)
    _tell({f"dense_{name}": value for name, value in dense.items()})
    figures = {f"dense_{name}_perplexity": value for name, value in dense.items()}
    weights = sum(parameter.numel() for parameter in model.parameters())
    frequencies = language.frequencies_of(list(ids.values()), model.config.vocab_size)
    for name in RECIPES[:1] if given.quick else given.recipes:
        net = copy.deepcopy(model)
        packed = compensate_(
            net,
            settings_of(name, given),
            calibration=Calibration(batches, next_token_loss),
            tuning=mixed,
            frequencies=frequencies,
            folder=folder,
            bf16=given.bf16,
            tell=_tell_step,
        )
        path = folder / f"{name}.terse"
        size = tersify.save(language.stored(packed, model, tokenizer), path)
        tersify.load(path, into=net.cpu())
        found = perplexities(net.to(given.device))
        ratios = {f"{key}_ratio": value / dense[key] for key, value in found.items()}
        over = 100 * (code_bytes(path) / predicted_bytes(packed) - 1)
        row = {
            "file_bytes": float(size),
            "bits_a_weight": 8 * size / weights,
            "codes_over_entropy_percent": over,
        }
        row = {
            f"{name.replace('-', '_')}_{key}": x for key, x in (row | ratios).items()
        }
        figures |= row
        _tell(row)
        write(figures)


def windows_of(given: argparse.Namespace) -> Windows:
    if given.quick:
        return QUICK
    return Windows(statistics=given.statistics, own=given.own)


def settings_of(name: str, given: argparse.Namespace) -> Compensation:
    """A recipe, with as many steps as were asked."""
    settings = load_compensation(name)
    if not settings.tune_steps:
        return settings
    steps = 2 if given.quick else given.steps
    return replace(
        settings,
        tune_steps=settings.tune_steps if steps is None else steps,
        tune_rate=given.rate or settings.tune_rate,
    )


def _evenly(windows: Tensor, count: int) -> Tensor:
    picked = torch.linspace(0, len(windows) - 1, min(count, len(windows)))
    return windows[picked.round().long()]


def _tell(figures: dict[str, float]) -> None:
    print({name: round(value, 4) for name, value in figures.items()}, flush=True)


def _tell_step(what: str, done: int, all_of_it: int) -> None:
    print(f"{what} {done} of {all_of_it}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--model", "--wikitext", "--books"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument(
        "--folder",
        type=Path,
        help="keeps statistics and files; a run that was stopped goes on there",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--recipes", nargs="*", choices=RECIPES, default=RECIPES)
    parser.add_argument("--statistics", type=int, default=Windows.statistics)
    parser.add_argument("--own", type=int, default=Windows.own)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rate", type=float)
    given = parser.parse_args()

    def write(figures: dict[str, float]) -> None:
        report(
            "lm-quality",
            figures,
            json_path=given.json,
            versions={"torch": torch.__version__},
            windows=asdict(windows_of(given)),
            length=language.LENGTH,
            bf16=given.bf16,
            batch=given.batch,
            settings={
                name: settings_of(name, given).to_mapping() for name in given.recipes
            },
        )

    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model, tokenizer = language.language_model(given.model)
        measured(model.to(given.device), tokenizer, given, folder, write)


if __name__ == "__main__":
    main()
