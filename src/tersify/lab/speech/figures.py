"""`lut-fig3` and `lut-fig4`: uniform or range split, with and without the shift, layer by layer and at 4 bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tersify.lab.experiments.provenance import provenance
from tersify.lab.networks.speech import HEADS
from tersify.lab.speech.measure import score
from tersify.lab.speech.mixtures import Corpus
from tersify.lab.speech.table3 import Row, fixed_point, quantized, trained, training_of
from tersify.methods import Lookup
from tersify.report.charts import Bar, groups
from tersify.report.svg import Drawing

APPROACHES = ("U", "UVBS", "RS", "RSVB")


def approach(name: str, bits: int) -> Lookup:
    """The paper's four: U, UVBS, RS and RSVB, for weights in (−1, 1)."""
    shift = name in ("UVBS", "RSVB")
    if name in ("U", "UVBS"):
        return Lookup(n=bits, m=bits, placement="uniform", fit="nearest", shift=shift, integer_bits=0)
    return Lookup(n=bits, m=8, fit="paper", ratio=1.0, shift=shift, integer_bits=0)


def rows(figure: str) -> dict[str, list[Row]]:
    """The figure's groups of bars."""
    if figure == "lut-fig3":
        return {
            "1st layer swept, 2nd 8-U": [Row(a, approach(a, 8), fixed_point(8)) for a in APPROACHES],
            "2nd layer swept, 1st 8-U": [Row(a, fixed_point(8), approach(a, 8)) for a in APPROACHES],
        }
    return {
        "4 bits in both layers": [Row(a, approach(a, 4), approach(a, 4)) for a in APPROACHES],
        "4 bits, then 8-U": [Row(a, approach(a, 4), fixed_point(8)) for a in APPROACHES],
    }


def reproduce_figure(
    figure: str,
    root: Path,
    out: Path,
    *,
    smoke: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure the figure's bars for both heads; networks already trained in `out` are used again."""
    corpus = Corpus(root)
    mixtures = corpus.listed("test", 3 if smoke else None)
    mixed = score(None, mixtures)
    results: dict[str, Any] = {"name": figure, "mixtures": len(mixtures), "mix": mixed.mean_stoi, **provenance()}
    for head in HEADS:
        model = trained(head, corpus, training_of(head, smoke), out, tell)
        unquantized = score(model, mixtures)
        results[head] = {"float": unquantized.mean_stoi, "groups": {}}
        for group, bars in rows(figure).items():
            found = {}
            for row in bars:
                scores = score(quantized(model, row)[0], mixtures)
                mean, error = scores.minus(unquantized)
                found[row.name] = {"stoi": scores.mean_stoi, "minus_float": mean, "standard_error": error}
                tell(f"{head}: {group}: {row.name}: STOI {scores.mean_stoi:.4f}")
            results[head]["groups"][group] = found
    (out / f"{figure}.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for head in HEADS:
        drawing = _draw(results[head], results["mix"])
        (out / f"{figure}-{head}.svg").write_text(drawing.standalone(f"STOI, {head} head"), encoding="utf-8")
    return results


def _draw(found: dict[str, Any], mixture: float) -> Drawing:
    """The groups of one head, with the mixture's and the unquantized network's STOI as levels."""
    bars = {
        group: [
            Bar(name=name, value=bar["stoi"], error=bar["standard_error"], tip=f"{name}: STOI {bar['stoi']:.4f}")
            for name, bar in measured.items()
        ]
        for group, measured in found["groups"].items()
    }
    return groups(bars, y_range=(0.4, 0.9), levels={"mixture": mixture, "unquantized": found["float"]})
