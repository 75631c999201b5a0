"""`lut-fig1`: how a layer's weights are distributed, and the intervals that the range
split cuts them into.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tersify.codec.atomic import write_text
from tersify.lab.experiments.provenance import provenance
from tersify.lab.networks.speech import HEADS
from tersify.lab.results import write_results
from tersify.lab.speech.mixtures import Corpus
from tersify.lab.speech.table3 import PAPER, WEIGHTS, trained, training_of
from tersify.methods.lookup.range_split import range_split
from tersify.report.svg import Drawing, Plot, color, label, tag
from tersify.tensor.lookup_table import Floats

POINTS = 200


def partition(weights: Floats) -> dict[str, Any]:
    """The layer's cumulative distribution and its intervals, the weights clamped to
    [−1, 1] as in the paper.
    """
    clamped = np.clip(weights, -1.0, 1.0)
    edges, low, high = range_split(
        clamped, PAPER.n, PAPER.ratio or 1.0, PAPER.p_start, PAPER.p_stop
    )
    fractions = np.linspace(0.0, 1.0, POINTS + 1)
    return {
        "weights": list(map(float, np.quantile(clamped, fractions))),
        "shares": list(map(float, fractions)),
        "edges": list(map(float, edges)),
        "internal": [low, high],
        "clamped": int((np.abs(weights) > 1).sum()),
    }


def draw(found: dict[str, Any]) -> Drawing:
    """The cumulative distribution, an edge at each interval, the internal partition
    shaded.
    """
    reach = max(map(abs, found["weights"]))
    plot = Plot((-reach, reach), (0.0, 1.0))
    low, high = map(plot.x, found["internal"])
    marks = [
        tag(
            "rect",
            x=low,
            y=plot.top,
            width=high - low,
            height=plot.bottom - plot.top,
            fill=color(0),
            fill_opacity=0.12,
        )
    ]
    marks.append(
        plot.axes(
            x_label="weight; shaded: the internal partition; thin lines: the intervals"
        )
    )
    marks += [
        tag(
            "line",
            x1=plot.x(edge),
            x2=plot.x(edge),
            y1=plot.top,
            y2=plot.bottom,
            stroke="var(--muted)",
            stroke_width=0.75,
            stroke_opacity=0.7,
        )
        for edge in found["edges"]
    ]
    marks.append(
        tag(
            "path",
            d=plot.path(found["weights"], found["shares"]),
            fill="none",
            stroke=color(0),
            stroke_width=2,
        )
    )
    for fraction, name in ((PAPER.p_start, "p_start"), (PAPER.p_stop, "p_stop")):
        marks.append(
            label(
                plot.left + 4,
                plot.y(fraction) + (-4 if fraction < 0.5 else 12),
                name,
                text_anchor="start",
            )
        )
    return Drawing("".join(marks))


def reproduce_partitions(
    root: Path,
    out: Path,
    *,
    smoke: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """One figure for each layer of every head; networks already trained in `out` are
    used again.
    """
    corpus = Corpus(root)
    results: dict[str, Any] = {
        "name": "lut-fig1",
        "n": PAPER.n,
        "ratio": PAPER.ratio,
        "p_start": PAPER.p_start,
        "p_stop": PAPER.p_stop,
        "smoke": smoke,
        **provenance(),
    }
    for head in HEADS:
        model = trained(head, corpus, training_of(head, smoke), out, tell)
        layers = {
            name: partition(
                model.get_parameter(name).detach().double().flatten().numpy()
            )
            for name in WEIGHTS
        }
        results[head] = layers
        for name, found in layers.items():
            file = out / f"lut-fig1-{head}-{name.partition('.')[0]}.svg"
            write_text(file, draw(found).standalone(f"{head} head, {name}"))
            low, high = found["internal"]
            tell(
                f"{head}: {name}: 92 % of the weights between {low:.4f} and {high:.4f}; {file}"
            )
    write_results(out / "lut-fig1.json", results)
    return results
