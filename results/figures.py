"""Paper 1's figures from the runs in results/*.json: docs/figures/*.svg, by `make
pages`; with --png also as PNG.

They are drawn from whatever rows there are: Fig. 1 the latents, Fig. 3 the regimes over
the epochs, Fig. 4 accuracy against zeros and against entropy, Fig. 5 the epoch of the
best accuracy. A figure without a row is not drawn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tersify.report.bar_charts import steps
from tersify.report.line_charts import Line, Point, lines, scatter, with_legend
from tersify.report.raster import write_png
from tersify.report.svg import Drawing, color

HERE = Path(__file__).parent
FOLDER = HERE.parent / "docs" / "figures"
# of one network, ResNet-20*
REGIMES = ("fixed", "linear", "log", "log-cap", "log-early")


def rows() -> list[dict[str, Any]]:
    found = []
    for name in ("ternary-table1", "ternary-table2"):
        file = HERE / f"{name}.json"
        if file.is_file():
            found += json.loads(file.read_text(encoding="utf-8"))["rows"]
    return found


def latents(row: str) -> Drawing | None:
    """Where the latents of a row lie at the end of training."""
    for found in rows():
        if found["id"] == row and "latents" in found:
            threshold = found["curve"].get("Δ", [None])[-1]
            return steps(
                found["latents"]["edges"],
                found["latents"]["counts"],
                hue=color(0),
                x_label="latent weight",
                threshold=threshold,
                tips=False,
            )
    return None


def over_epochs(key: str, start: float = 0.0) -> Drawing | None:
    """The regimes over their epochs, without the fraction `start` of them."""
    series = []
    for index, row in enumerate(
        row for row in rows() if row["id"] in REGIMES and key in row["curve"]
    ):
        xs, ys = row["curve"]["epoch"], row["curve"][key]
        first = int(start * len(xs))
        series.append(Line(name=row["name"], run=index, xs=xs[first:], ys=ys[first:]))
    if not series:
        return None
    return with_legend(
        lines(f"epochs-{key}", series), [(line.name, line.run) for line in series]
    )


def plane(x: str, y: str, x_label: str) -> Drawing | None:
    """A point for each run of the regimes and of our own, and hollow what was published
    for them.
    """
    points, names, told = [], [], set()
    for row in rows():
        ours, published = row["ours"], row["published"]
        if row["id"] not in (*REGIMES, "best") or not (x in ours and y in ours):
            continue
        points += [
            Point(name="", x=at, y=value, run=len(names), tip=row["name"])
            for at, value in zip(ours[x]["seeds"], ours[y]["seeds"], strict=True)
        ]
        names.append((row["name"], len(names)))
        if (
            isinstance(published.get(x), float)
            and y in published
            and (published[x], published[y]) not in told
        ):
            told.add((published[x], published[y]))
            points.append(
                Point(name=f"{row['name']}, paper", x=published[x], y=published[y])
            )
    return (
        with_legend(scatter(f"{x}-{y}", points, [], x_label=x_label), names)
        if points
        else None
    )


FIGURES: dict[str, tuple[str, Callable[[], Drawing | None]]] = {
    "ternary-fig1-fixed": (
        "Latents at the end, fixed Δ = 0.1",
        lambda: latents("fixed"),
    ),
    "ternary-fig1-log": ("Latents at the end, log regime", lambda: latents("log")),
    "ternary-fig3-accuracy": (
        "Test accuracy over the epochs, %",
        lambda: over_epochs("accuracy", start=0.2),
    ),
    "ternary-fig3-sparsity": (
        "Zeros over the epochs, %",
        lambda: over_epochs("sparsity"),
    ),
    "ternary-fig4-sparsity": (
        "Accuracy on CIFAR-10, %, against zeros",
        lambda: plane("sparsity", "accuracy", "zeros, %"),
    ),
    "ternary-fig4-entropy": (
        "Accuracy on CIFAR-10, %, against entropy",
        lambda: plane("entropy_bits", "accuracy", "entropy, bits per weight"),
    ),
    "ternary-fig5": (
        "Best accuracy, %, and the epoch it was reached in",
        lambda: plane("best_epoch", "accuracy_best", "epoch of the best accuracy"),
    ),
}


def drawn() -> dict[str, str]:
    """Every figure that can be drawn, as the text of its SVG file."""
    found = {key: (title, draw()) for key, (title, draw) in FIGURES.items()}
    return {
        key: drawing.standalone(title)
        for key, (title, drawing) in found.items()
        if drawing is not None
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for key, text in drawn().items():
        svg = FOLDER / f"{key}.svg"
        svg.write_text(text, encoding="utf-8")
        if "--png" in sys.argv[1:]:
            write_png(svg)


if __name__ == "__main__":
    main()
