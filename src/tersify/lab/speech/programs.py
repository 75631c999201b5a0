"""The speech network's experiments, as the registry calls them.

Each trains both heads where they are not there yet; figures use the networks of
`lut-table3` where `out` is the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tersify.lab.data.roots import data_root
from tersify.lab.experiments.registry import Request, Watch
from tersify.lab.speech.lut_figures import reproduce_figure
from tersify.lab.speech.partitions import reproduce_partitions
from tersify.lab.speech.table3 import reproduce

Found = tuple[dict[str, Any], list[Path]]


def table3(request: Request, watch: Watch) -> Found:
    root = _speech(request)
    results = reproduce(
        root, request.out, smoke=request.smoke, resume=request.resume, tell=watch.tell
    )
    return results, [request.out / "results.json"]


def figure1(request: Request, watch: Watch) -> Found:
    results = reproduce_partitions(
        _speech(request), request.out, smoke=request.smoke, tell=watch.tell
    )
    return results, [request.out / "lut-fig1.json"]


def figure3(request: Request, watch: Watch) -> Found:
    return _figure("lut-fig3", request, watch)


def figure4(request: Request, watch: Watch) -> Found:
    return _figure("lut-fig4", request, watch)


def _figure(name: str, request: Request, watch: Watch) -> Found:
    results = reproduce_figure(
        name, _speech(request), request.out, smoke=request.smoke, tell=watch.tell
    )
    return results, [request.out / f"{name}.html"]


def _speech(request: Request) -> Path:
    return data_root(request.data_root) / "speech"
