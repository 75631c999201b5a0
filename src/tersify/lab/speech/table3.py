"""`lut-table3`: the paper's Table 3 for each head, with the better tables beside it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import tersify
from tersify import codec
from tersify.lab.experiments.provenance import provenance
from tersify.lab.networks.speech import HEADS, SpeechMlp
from tersify.lab.results import write_results
from tersify.lab.speech.measure import Scores, score
from tersify.lab.speech.mixtures import Corpus, Mixture
from tersify.lab.speech.search import output_error, search_split, validation_frames
from tersify.lab.speech.training import SpeechTraining, train
from tersify.methods import Lookup
from tersify.recipe import Recipe, Rule
from tersify.tensor import CompressedModel, Table

TITLE = "Table 3 of Nicodemo et al.: STOI and bytes of the quantized speech network"
WEIGHTS = ("hidden.weight", "output.weight")
BIASES = ("hidden.bias", "output.bias")
# Chosen on the validation mixtures: the spectrum head's error goes on falling where its
# speech gets no clearer.
EPOCHS = {"mask": 20, "spectrum": 4, "magnitude": 6}


def fixed_point(bits: int) -> Lookup:
    """The paper's m-U: fixed point for weights in (−1, 1)."""
    return Lookup(
        n=bits, m=bits, placement="uniform", fit="nearest", shift=False, integer_bits=0
    )


PAPER = Lookup(fit="paper", ratio=1.0, integer_bits=0)
# Each bias vector in 8 bits with its own point.
BIAS = Lookup(n=8, m=8, placement="uniform", fit="nearest", shift=False)


@dataclass(frozen=True)
class Row:
    """A method for each layer, and what the paper found."""

    name: str
    first: Lookup
    second: Lookup
    published: Mapping[str, float] = field(default_factory=dict)

    def recipe(self) -> Recipe:
        biases = Rule(weights=BIASES, methods=(BIAS,))
        layers = (
            Rule(weights=name, methods=(m,))
            for name, m in zip(WEIGHTS, (self.first, self.second), strict=True)
        )
        return Recipe(
            rules=(*layers, biases), description=f"Speech network, {self.name}"
        )


ROWS = (
    Row(
        "8-U",
        fixed_point(8),
        fixed_point(8),
        {"stoi": 0.87, "loss": -0.002, "bytes": 297_216},
    ),
    Row(
        "4-U",
        fixed_point(4),
        fixed_point(4),
        {"stoi": 0.63, "loss": -0.246, "bytes": 148_608},
    ),
    Row("4-NU", PAPER, PAPER, {"stoi": 0.85, "loss": -0.024, "bytes": 148_608}),
    Row(
        "4-NU/8-U",
        PAPER,
        fixed_point(8),
        {"stoi": 0.86, "loss": -0.016, "bytes": 165_120},
    ),
    Row("optimal 4", Lookup(), Lookup()),
    Row("optimal 3", Lookup(n=3), Lookup(n=3)),
)
PUBLISHED_FLOAT, PUBLISHED_MIX = 0.87, 0.84


def training_of(head: str, smoke: bool = False) -> SpeechTraining:
    return SpeechTraining(epochs=1 if smoke else EPOCHS[head])


def reproduce(
    root: Path,
    out: Path,
    *,
    smoke: bool = False,
    resume: bool = False,
    heads: tuple[str, ...] = HEADS,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train each head into `out`, quantize them, and measure; also written to
    `out/results.json`.
    """
    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(
            f"{out} is not empty; add --resume to go on with what is in it, or give another --out"
        )
    corpus = Corpus(root)
    mixtures = corpus.listed("test", 3 if smoke else None)
    # The mixtures as they are: what any enhancement must beat.
    mixed = score(None, mixtures)
    results: dict[str, Any] = {
        "name": "lut-table3",
        "title": TITLE,
        "mixtures": len(mixtures),
        "smoke": smoke,
        "epochs": EPOCHS,
        "seed": SpeechTraining.seed,
        **provenance(),
    }
    results["mix"] = {
        "stoi": mixed.mean_stoi,
        "snr_db": mixed.mean_snr_db,
        "published": PUBLISHED_MIX,
    }
    for head in heads:
        model = trained(head, corpus, training_of(head, smoke), out, tell)
        results[head] = _head(
            model, (*ROWS, searched(model, corpus)), mixtures, mixed, out / head, tell
        )
        write_results(out / "results.json", results)
    return results


def trained(
    head: str,
    corpus: Corpus,
    settings: SpeechTraining,
    out: Path,
    tell: Callable[[str], None] = lambda line: None,
) -> SpeechMlp:
    """The head's network, from `out` where it is there already."""
    path = out / head / "float.terse"
    torch.manual_seed(settings.seed)
    model = SpeechMlp(head)
    if path.is_file():
        codec.load(path, into=model)
        return model.eval()
    train(model, corpus, settings, lambda line: tell(f"{head}: {line}"))
    path.parent.mkdir(parents=True, exist_ok=True)
    codec.save(CompressedModel(model.state_dict(), metadata=_metadata(head)), path)
    return model


def quantized(model: SpeechMlp, row: Row) -> tuple[SpeechMlp, CompressedModel]:
    """A copy of the network with the row's tables."""
    changed = copy.deepcopy(model)
    packed = tersify.compress_(changed, row.recipe())
    packed.metadata |= _metadata(model.head)
    return changed, packed


def stored_bytes(packed: CompressedModel) -> dict[str, int]:
    """The paper's count (the codes of the weights), and what it leaves out: tables and
    biases.
    """
    tables = {name: Table.of(tensor) for name, tensor in packed.compressed().items()}
    return {
        "weight_bytes": sum(tables[name].code_bytes() for name in WEIGHTS),
        "table_bytes": sum(tables[name].table_bytes() for name in WEIGHTS),
        "bias_bytes": sum(tables[name].code_bytes() for name in BIASES),
    }


def searched(model: SpeechMlp, corpus: Corpus) -> Row:
    """The paper's method with the split that damages the outputs least on validation
    mixtures.
    """
    frames = validation_frames(corpus)

    def damage(method: Lookup) -> float:
        return output_error(
            quantized(model, Row("tried", method, method))[0], model, frames
        )

    best = search_split(PAPER, damage)
    return Row(f"4-NU searched (R_B {best.ratio:g}, p {best.p_start:g})", best, best)


def _head(
    model: SpeechMlp,
    rows: Sequence[Row],
    mixtures: list[Mixture],
    mixed: Scores,
    out: Path,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    unquantized = score(model, mixtures)
    found: dict[str, Any] = {
        "float": _figures(unquantized, {"mix": mixed})
        | {"published": {"stoi": PUBLISHED_FLOAT}}
    }
    scores: dict[str, Scores] = {}
    for row in rows:
        changed, packed = quantized(model, row)
        stem = row.name.partition(" (")[0].replace("/", "-").replace(" ", "-")
        file_bytes = codec.save(packed, out / f"{stem}.terse")
        scores[row.name] = score(changed, mixtures)
        others = {"float": unquantized, "mix": mixed}
        if "4-NU" in scores and row.name != "4-NU":
            others["4-NU"] = scores["4-NU"]
        found[row.name] = (
            _figures(scores[row.name], others)
            | stored_bytes(packed)
            | {
                "file_bytes": file_bytes,
                "published": dict(row.published),
            }
        )
        tell(f"{model.head}: {row.name}: STOI {scores[row.name].mean_stoi:.4f}")
    return found


def _figures(scores: Scores, others: Mapping[str, Scores]) -> dict[str, Any]:
    """STOI, SNR, and the paired difference to each other network with its standard
    error.
    """
    differences = {
        name: dict(zip(("mean", "standard_error"), scores.minus(other), strict=True))
        for name, other in others.items()
    }
    return {
        "stoi": scores.mean_stoi,
        "snr_db": scores.mean_snr_db,
        "minus": differences,
    }


def _metadata(head: str) -> dict[str, Any]:
    return {"target": {"name": "speech-mlp", "options": {"head": head}}}
