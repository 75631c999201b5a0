"""The figures of one run: layer by layer, codes and latents, the file's make-up, speed
beside its peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tersify.report.bar_charts import Bar, columns, divided, rows, steps
from tersify.report.figures import Figure
from tersify.report.number_text import bits, count, percent, short, size
from tersify.report.run_files import Run, is_number
from tersify.report.svg import color

LAYERS = "layers, first to last"


def layers(run: Run) -> list[dict[str, Any]]:
    """What is compressed, and dense tensors of two or more dimensions; with its time
    where that was measured.
    """
    if run.contents is None:
        return []
    timed = {
        row["name"]: row["ms"]
        for row in _bench_rows(run, "layers", "ms")
        if isinstance(row.get("name"), str)
    }
    found = [
        dict(row)
        for row in run.contents.facts["tensors"]
        if row["kind"] != "dense" or len(row["shape"]) > 1
    ]
    for row in found:
        # A benchmark names layers, a file their weights.
        milliseconds = timed.get(
            row["name"], timed.get(row["name"].removesuffix(".weight"))
        )
        if milliseconds is not None:
            row["ms"] = milliseconds
    return found


_PER_LAYER = {
    "weights": ("Weights per layer", count),
    "sparsity": ("Zeros per layer, %", percent),
    "entropy_bits": ("Entropy per layer, bits per weight", bits),
    "bytes": ("Bytes on disk per layer", size),
    "ms": ("Time per layer, ms", short),
}


def layer_figures(run: Run, index: int, prefix: str) -> list[Figure]:
    figures = []
    for key, (title, written) in _PER_LAYER.items():
        bars = [
            Bar(
                name=row["name"],
                value=row[key],
                tip=f"{row['name']}\n{written(row[key])}",
            )
            for row in layers(run)
            if key in row
        ]
        if bars:
            drawing = columns(
                bars,
                hue=color(index),
                top=100 if key == "sparsity" else None,
                x_label=LAYERS,
            )
            note = (
                "Layers whose codes are coded together share their bytes by the number of weights."
                if key == "bytes"
                else ""
            )
            figures.append(
                Figure(
                    key=f"{prefix}layer-{key}", title=title, note=note, drawing=drawing
                )
            )
    return figures


def value_figures(run: Run, index: int, prefix: str) -> list[Figure]:
    """How often each code occurs, and where the latents behind them lie."""
    figures = []
    for number, codes in enumerate(run.contents.codes if run.contents else ()):
        # An empty tensor has no codes at all.
        total = sum(codes.counts) or 1
        bars = [
            Bar(
                name=name,
                value=100 * n / total,
                tip=f"{name}\n{n:,} weights · {100 * n / total:.2f} %",
            )
            for name, n in zip(codes.labels, codes.counts, strict=True)
        ]
        drawing = columns(
            bars, hue=color(index), named=len(bars) <= 16, x_label="value of the code"
        )
        figures.append(
            Figure(
                key=f"{prefix}codes-{number}",
                title=f"{codes.title}, % of weights",
                drawing=drawing,
            )
        )
    pooled = pooled_latents(run.latents)
    if pooled:
        threshold = _threshold(run)
        drawing = steps(
            *pooled, hue=color(index), x_label="latent value", threshold=threshold
        )
        note = "" if threshold is None else "Between −Δ and Δ (pale) a weight is zero."
        figures.append(
            Figure(
                key=f"{prefix}latents",
                title="Latents at the end",
                note=note,
                drawing=drawing,
            )
        )
    return figures


def _threshold(run: Run) -> Any:
    """Below which a latent weight ended as zero, where the method has one."""
    return run.history[-1].get("Δ") if run.history else None


def latent_figures(run: Run, index: int, prefix: str) -> list[Figure]:
    """The latents of each weight alone."""
    figures = []
    threshold = _threshold(run)
    for number, (name, histogram) in enumerate(run.latents.items()):
        if _is_histogram(histogram):
            drawing = steps(
                histogram["edges"],
                histogram["counts"],
                hue=color(index),
                threshold=threshold,
                tips=False,
            )
            figures.append(
                Figure(key=f"{prefix}latents-{number}", title=name, drawing=drawing)
            )
    return figures


def pooled_latents(latents: dict[str, Any]) -> tuple[list[float], list[float]] | None:
    """All the latents together, where their histograms have the same bins."""
    histograms = [h for h in latents.values() if _is_histogram(h)]
    if not histograms or any(h["edges"] != histograms[0]["edges"] for h in histograms):
        return None
    return histograms[0]["edges"], list(
        map(sum, zip(*(h["counts"] for h in histograms), strict=True))
    )


def _is_histogram(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    edges, counts = value.get("edges"), value.get("counts")
    return (
        isinstance(edges, list)
        and isinstance(counts, list)
        and len(edges) == len(counts) + 1 > 1
        and all(map(is_number, (*edges, *counts)))
    )


def file_parts(run: Run) -> list[dict[str, Any]]:
    """The parts of the file; their bytes add up to it."""
    if run.contents is None:
        return []
    facts = run.contents.facts
    alike: dict[tuple[str, str], dict[str, Any]] = {}
    for row in facts["groups"]:
        names = (_part_name(row["holds"]), row["coder"])
        part = alike.setdefault(
            names, {"part": names[0], "coder": names[1], "elements": 0, "bytes": 0}
        )
        part["elements"] += row["elements"]
        part["bytes"] += row["bytes"]
    rest = {
        "part": "header and directory",
        "coder": "",
        "elements": None,
        "bytes": facts["overhead_bytes"],
    }
    return [*alike.values(), rest]


def file_figure(run: Run, prefix: str) -> list[Figure]:
    parts = file_parts(run)
    if not parts:
        return []
    bars = [
        Bar(name=p["part"], value=p["bytes"], tip=f"{p['part']}\n{p['bytes']:,} B")
        for p in parts
    ]
    drawing = divided(bars, total=sum(bar.value for bar in bars))
    return [
        Figure(key=f"{prefix}file", title="What the file is made of", drawing=drawing)
    ]


def _part_name(holds: str) -> str:
    known = {
        "F32": "32-bit floats",
        "F16": "16-bit floats",
        "BF16": "bfloat16",
        "I64": "64-bit integers",
    }
    return known.get(holds, holds)


def speed_figures(run: Run, prefix: str) -> list[Figure]:
    """One figure for each batch size and thread count that was timed."""
    settings: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in speed_rows(run):
        settings.setdefault(
            (str(row.get("batch", "?")), str(row.get("threads", "?"))), []
        ).append(row)
    figures = []
    for number, ((batch, threads), timed) in enumerate(settings.items()):
        timed = sorted(timed, key=lambda row: row["median_ms"])
        bars = [
            Bar(
                name=str(row["peer"]),
                value=row["median_ms"],
                tip=f"{row['peer']}\n{row['median_ms']:.3f} ms, median",
            )
            for row in timed
        ]
        hues = [
            color(0) if bar.name.startswith("tersify") else color(7) for bar in bars
        ]
        title = f"Batch of {batch}, {threads} thread{'' if threads == '1' else 's'}, ms"
        figures.append(
            Figure(
                key=f"{prefix}speed-{number}",
                title=title,
                drawing=rows(bars, hues=hues),
            )
        )
    return figures


def speed_rows(run: Run) -> list[dict[str, Any]]:
    return [row for row in _bench_rows(run, "rows", "median_ms") if "peer" in row]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Tersify's median, and how many times the speed of the fastest other engine it is,
    where there was one.
    """

    milliseconds: float
    factor: float | None
    peer: str
    batch: float
    threads: object


def _setting(row: dict[str, Any]) -> tuple[Any, Any]:
    return row.get("batch"), row.get("threads")


def speed_beside_peers(run: Run) -> Speed | None:
    """At the smallest batch that was timed."""
    rows = speed_rows(run)
    own = [
        row for row in rows if row["peer"] == "tersify" and is_number(row.get("batch"))
    ]
    if not own:
        return None
    # Of equal batches the fastest setting of ours.
    first = min(own, key=lambda row: (row["batch"], row["median_ms"]))
    # Only peers that were timed with the same batch and as many threads compare.
    alike = [row for row in rows if _setting(row) == _setting(first)]
    # Variants of ours begin with our name, and are no peers.
    peers = [row for row in alike if not str(row["peer"]).startswith("tersify")]
    best = min(peers, key=lambda row: row["median_ms"], default=None)
    factor = (
        best["median_ms"] / first["median_ms"] if best and first["median_ms"] else None
    )
    return Speed(
        milliseconds=first["median_ms"],
        factor=factor,
        peer=str(best["peer"]) if best else "",
        batch=first["batch"],
        threads=first.get("threads", "?"),
    )


def _bench_rows(run: Run, key: str, figure: str) -> list[dict[str, Any]]:
    """The measured rows of bench.json; a peer that was missing has no figure.

    The file holds `rows` (peer, batch, threads, median_ms, best_ms, spread_ms),
    `layers` (name, ms) and `machine`, each of them where it was measured.
    """
    found = run.bench.get(key)
    wanted = (
        [row for row in found if isinstance(row, dict)]
        if isinstance(found, list)
        else []
    )
    return [row for row in wanted if is_number(row.get(figure))]
