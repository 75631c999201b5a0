"""`lut-fig3` and `lut-fig4`: uniform or range split, with and without the shift, layer
by layer and at 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tersify.codec.atomic import write_text
from tersify.lab.experiments.provenance import provenance
from tersify.lab.networks.speech import HEADS
from tersify.lab.results import write_results
from tersify.lab.speech.measure import score
from tersify.lab.speech.mixtures import Corpus
from tersify.lab.speech.table3 import Row, fixed_point, quantized, trained, training_of
from tersify.methods import Lookup

APPROACHES = ("U", "UVBS", "RS", "RSVB")
FIGURES = {
    "lut-fig3": "Fig. 3: 8 bits, one layer at a time",
    "lut-fig4": "Fig. 4: 4 bits",
}
COLORS = ("#1f5fbf", "#d9730d")


def approach(name: str, bits: int) -> Lookup:
    """The paper's four: U, UVBS, RS and RSVB, for weights in (−1, 1)."""
    shift = name in ("UVBS", "RSVB")
    if name in ("U", "UVBS"):
        return Lookup(
            n=bits,
            m=bits,
            placement="uniform",
            fit="nearest",
            shift=shift,
            integer_bits=0,
        )
    return Lookup(n=bits, m=8, fit="paper", ratio=1.0, shift=shift, integer_bits=0)


def rows(figure: str) -> dict[str, list[Row]]:
    """The figure's groups of bars."""
    if figure == "lut-fig3":
        return {
            "1st layer swept, 2nd 8-U": [
                Row(a, approach(a, 8), fixed_point(8)) for a in APPROACHES
            ],
            "2nd layer swept, 1st 8-U": [
                Row(a, fixed_point(8), approach(a, 8)) for a in APPROACHES
            ],
        }
    return {
        "4 bits in both layers": [
            Row(a, approach(a, 4), approach(a, 4)) for a in APPROACHES
        ],
        "4 bits, then 8-U": [
            Row(a, approach(a, 4), fixed_point(8)) for a in APPROACHES
        ],
    }


def reproduce_figure(
    figure: str,
    root: Path,
    out: Path,
    *,
    smoke: bool = False,
    heads: tuple[str, ...] = HEADS,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure the figure's bars for each of these heads; networks already trained in
    `out` are used again.
    """
    corpus = Corpus(root)
    mixtures = corpus.listed("test", 3 if smoke else None)
    mixed = score(None, mixtures)
    results: dict[str, Any] = {
        "name": figure,
        "mixtures": len(mixtures),
        "mix": mixed.mean_stoi,
        **provenance(),
    }
    for head in heads:
        model = trained(head, corpus, training_of(head, smoke), out, tell)
        unquantized = score(model, mixtures)
        results[head] = {"float": unquantized.mean_stoi, "groups": {}}
        for group, bars in rows(figure).items():
            found = {}
            for row in bars:
                scores = score(quantized(model, row)[0], mixtures)
                mean, error = scores.minus(unquantized)
                found[row.name] = {
                    "stoi": scores.mean_stoi,
                    "minus_float": mean,
                    "standard_error": error,
                }
                tell(f"{head}: {group}: {row.name}: STOI {scores.mean_stoi:.4f}")
            results[head]["groups"][group] = found
    write_results(out / f"{figure}.json", results)
    draw(results, out / f"{figure}.html")
    return results


def draw(results: dict[str, Any], path: Path) -> None:
    """The figure's points for each head that was measured, as a page."""
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        raise ValueError("figures need plotly; pip install 'tersify[plots]'") from None
    heads = [head for head in HEADS if head in results]
    figure = make_subplots(
        cols=len(heads),
        subplot_titles=[f"{head} head" for head in heads],
        horizontal_spacing=0.16,
    )
    for column, head in enumerate(heads, 1):
        groups = results[head]["groups"]
        for number, (group, found) in enumerate(groups.items()):
            # Points, not bars: the axis does not start at zero. Groups stand beside
            # each other.
            places = [
                place + 0.2 * (number - (len(groups) - 1) / 2)
                for place in range(len(found))
            ]
            errors = {"array": [point["standard_error"] for point in found.values()]}
            figure.add_scatter(
                name=group,
                legendgroup=group,
                showlegend=column == 1,
                x=places,
                error_y=errors,
                mode="markers",
                y=[point["stoi"] for point in found.values()],
                marker={"size": 10, "color": COLORS[number]},
                row=1,
                col=column,
            )
        for name, level in (
            ("mixture", results["mix"]),
            ("unquantized", results[head]["float"]),
        ):
            figure.add_hline(
                y=level,
                line_dash="dot",
                line_color="gray",
                row=1,
                col=column,
                annotation_text=name,
                annotation_position="right",
            )
    figure.update_xaxes(
        tickvals=list(range(len(APPROACHES))), ticktext=list(APPROACHES)
    )
    figure.update_yaxes(title="STOI (± standard error of the loss)")
    title = f"{FIGURES[results['name']]}, {results['mixtures']} test mixtures"
    figure.update_layout(
        title=title,
        template="plotly_white",
        legend={"orientation": "h", "y": -0.12},
        height=520,
    )
    write_text(path, figure.to_html(include_plotlyjs=True))
