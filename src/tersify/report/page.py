"""The page: headline, comparison, figures and tables of the runs in one HTML file that
needs nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources

from tersify.report import run_graphics
from tersify.report.figures import Figure, dense_accuracy, epoch_figures, plane_figures
from tersify.report.number_text import bits, duration, percent, points, size, times
from tersify.report.run_files import Run
from tersify.report.run_tables import (
    file_table,
    layer_table,
    recipe_and_provenance,
    runs_table,
    speed_table,
)
from tersify.report.svg import DARK, LIGHT, SERIES, clean
from tersify.report.sweep_figures import SweepResults, sweep_figures, sweep_table


class Page:
    """Sections in their order; `figures` holds every figure that is in the page."""

    def __init__(
        self, runs: Sequence[Run], sweeps: Sequence[SweepResults] = ()
    ) -> None:
        self.runs = runs
        self.figures: list[Figure] = []
        several = len(runs) > 1
        main = _main_run(runs)
        # The runs of a sweep are called by their numbers, which say nothing.
        title = sweeps[0].name if len(sweeps) == 1 and several else main.name
        sections = [_header(title, main, runs), self._comparison() if several else ""]
        for index, sweep in enumerate(sweeps):
            prefix = f"sweep{index}" if len(sweeps) > 1 else "sweep"
            drawn = sweep_figures(sweep, prefix)
            sections.append(
                self._section(f"The sweep {sweep.name}", drawn, sweep_table(sweep))
            )
        sections.append(
            self._section("Over the epochs", epoch_figures(runs), legend=several)
        )
        sections.append(
            self._section("What accuracy costs", plane_figures(runs), kind="cards two")
        )
        for index, run in enumerate(runs):
            sections.append(self._run(run, index, several=several, opened=run is main))
        self.html = _document(f"{title} · Tersify", "".join(sections))

    def _section(
        self,
        title: str,
        figures: Sequence[Figure],
        extra: str = "",
        *,
        legend: bool = False,
        kind: str = "cards",
    ) -> str:
        if not figures and not extra:
            return ""
        names = _legend(self.runs) if legend else ""
        return f"<section><h2>{clean(title)}</h2>{names}{self._cards(figures, kind)}{extra}</section>"

    def _cards(self, figures: Sequence[Figure], kind: str = "cards") -> str:
        self.figures += figures
        return (
            f'<div class="{kind}">{"".join(map(_card, figures))}</div>'
            if figures
            else ""
        )

    def _comparison(self) -> str:
        return f"<section>{runs_table(self.runs)}</section>"

    def _run(self, run: Run, index: int, *, several: bool, opened: bool) -> str:
        prefix = f"run{index}-" if several else ""
        weights = run_graphics.layer_figures(
            run, index, prefix
        ) + run_graphics.value_figures(run, index, prefix)
        latents = run_graphics.latent_figures(run, index, prefix)
        inside = [
            "".join(f'<p class="note">{clean(note)}</p>' for note in run.notes),
            self._section(
                "The weights",
                weights,
                layer_table(run) + self._folded("Latents of each weight", latents),
            ),
            self._section(
                "The file",
                [],
                self._pair(run_graphics.file_figure(run, prefix), file_table(run)),
            ),
            self._section(
                "Speed beside its peers",
                run_graphics.speed_figures(run, prefix),
                speed_table(run),
            ),
            self._section("Recipe and provenance", [], recipe_and_provenance(run)),
        ]
        body = "".join(inside)
        if not several:
            return body
        title = f'<i class="swatch" style="background:var(--s{index % SERIES})"></i>{clean(run.name)}'
        return f'<details class="run"{" open" if opened else ""}><summary>{title}</summary>{body}</details>'

    def _pair(self, figures: Sequence[Figure], beside: str) -> str:
        return (
            f'<div class="pair"><div>{self._cards(figures)}</div><div>{beside}</div></div>'
            if figures
            else ""
        )

    def _folded(self, title: str, figures: Sequence[Figure]) -> str:
        if not figures:
            return ""
        return f'<details class="more"><summary>{clean(title)}</summary>{self._cards(figures)}</details>'


def _main_run(runs: Sequence[Run]) -> Run:
    """The run the headline speaks of: the compressed one with the best accuracy."""
    # Tuples compare from the left: compressed before dense, finished before unfinished,
    # then by accuracy.
    return max(
        runs,
        key=lambda run: (
            run.is_compressed,
            run.is_finished,
            run.figure("accuracy") or 0.0,
        ),
    )


def _header(title: str, run: Run, runs: Sequence[Run]) -> str:
    about = " · ".join(clean(fact) for fact in _facts(title, run, runs) if fact)
    return (
        '<header><div class="bar"><span class="brand">Tersify report</span>'
        '<button type="button" id="theme" aria-label="Light or dark">◐</button></div>'
        f'<h1>{clean(title)}</h1><p class="about">{about}</p>'
        f'<div class="tiles">{"".join(_tiles(run, runs))}</div></header>'
    )


def _facts(title: str, run: Run, runs: Sequence[Run]) -> list[str]:
    """What stands under the title: which run it is, what it trained and how long."""
    facts = [_rank_among(title, run, runs)]
    facts.append(f"{run.network} on {run.data}" if run.network else run.data)
    if epochs := run.figure("epochs") or run.figure("epoch"):
        facts.append(f"{epochs:.0f} epoch{'' if epochs == 1 else 's'}")
    if seconds := run.metrics.get("train_seconds"):
        facts.append(f"trained in {duration(seconds)}")
    if not run.is_finished and run.history:
        facts.append("not finished")
    return facts


def _rank_among(title: str, run: Run, runs: Sequence[Run]) -> str:
    """That the run is the best of several, by name where the title is another."""
    best = f"the best of {len(runs)} runs"
    if title != run.name:
        return f"{run.name}, {best}"
    return best if len(runs) > 1 else ""


def _tiles(run: Run, runs: Sequence[Run]) -> list[str]:
    accuracy, dense = run.figure("accuracy"), dense_accuracy(run, runs)
    tiles = []
    if run.times_smaller is not None and run.is_compressed:
        tiles.append(
            _tile(
                times(run.times_smaller),
                "smaller than fp32",
                f"{size(run.figure('dense_bytes'))} before",
            )
        )
    if accuracy is not None:
        # Against the dense twin where it is known; else the best epoch shows how far
        # the last one is.
        best = run.figure("accuracy_best")
        under = (
            f"{points(accuracy - dense)} points against the dense twin"
            if dense is not None
            else ""
        )
        if not under and best is not None:
            under = f"best epoch {percent(best)}"
        tiles.append(_tile(percent(accuracy), "test accuracy", under))
    if run.is_compressed:
        tiles.append(
            _tile(percent(run.figure("sparsity"), 1), "of the weights are zero", "")
        )
        tiles.append(
            _tile(
                f"{bits(run.figure('entropy_bits'))} bit",
                "entropy per weight",
                "of an ideal order-0 coder",
            )
        )
    if run.figure("file_bytes") is not None:
        per_weight = run.file_bits_per_weight
        under = (
            f"{per_weight:.2f} bit per weight, all included"
            if per_weight is not None
            else ""
        )
        tiles.append(_tile(size(run.figure("file_bytes")), "on disk", under))
    speed = run_graphics.speed_beside_peers(run)
    if speed is not None and speed.factor is not None:
        many = "" if speed.threads == 1 else "s"
        under = f"{speed.milliseconds:.2f} ms, batch {speed.batch:.0f}, {speed.threads} thread{many}"
        tiles.append(_tile(times(speed.factor), f"the speed of {speed.peer}", under))
    return tiles


def _tile(value: str, name: str, under: str) -> str:
    small = f"<small>{clean(under)}</small>" if under else ""
    return f'<div class="tile"><b>{clean(value)}</b><span>{clean(name)}</span>{small}</div>'


def _card(figure: Figure) -> str:
    hover = ""
    if figure.drawing.hover is not None:
        # `<` never stands in the data, so nothing in it can end the element.
        data = json.dumps(
            figure.drawing.hover, ensure_ascii=True, separators=(",", ":")
        ).replace("<", "\\u003c")
        hover = f'<script type="application/json">{data}</script>'
    note = f"<p>{clean(figure.note)}</p>" if figure.note else ""
    return (
        f'<figure id="{clean(figure.key)}"><figcaption>{clean(figure.title)}'
        f'<button type="button" class="save" aria-label="Save as SVG">SVG</button></figcaption>'
        f"{figure.drawing.inline(figure.title)}{hover}{note}</figure>"
    )


def _legend(runs: Sequence[Run]) -> str:
    entries = "".join(
        f'<button type="button" aria-pressed="true" data-toggles="{index}">'
        f'<i class="swatch" style="background:var(--s{index % SERIES})"></i>{clean(run.name)}</button>'
        for index, run in enumerate(runs)
    )
    return f'<div class="legend">{entries}</div>'


def _document(title: str, body: str) -> str:
    home = resources.files("tersify.report")
    style, script = (
        home.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js")
    )
    colors = "".join(
        f"--{name}:light-dark({LIGHT[name]},{DARK[name]});" for name in LIGHT
    )
    # The page may load nothing and run only this script, whatever stands in a run's
    # files.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{clean(title)}</title>'
        f"<style>:root{{{colors}}}\n{style}</style></head>\n<body><main>{body}</main>"
        f'<div id="tip" role="status" hidden></div><script>{script}</script></body></html>\n'
    )
