"""The one list of what `tersify reproduce` knows, and one way to run any of it.

Most experiments train their rows: each is a file `NAME.toml` of this folder, see
`experiment_file.py`. Anything else is a program, a file `programs/NAME.toml`:

    title, source                  what it is, where it was published
    run = "module:function"        called as `function(request, watch)`; returns the results and the files written
    shows = "…"                    how its results are printed; nothing unless given
    takes = ["epochs", …]          which of epochs, device and compile it takes
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tersify.lab.experiments.experiment_file import Experiment, build, experiments
from tersify.lab.experiments.reproduce import reproduce
from tersify.lab.experiments.run_figures import draw
from tersify.lab.names import check_known, unknown
from tersify.lab.trainer import Display
from tersify.toml import read_toml

if TYPE_CHECKING:
    from tersify.lab.sweep import SweepDisplay

SETTINGS = ("epochs", "device", "compile")
_TRAINED_TAKES = frozenset({"row", "seed", "validate", "png", *SETTINGS})


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run, and where. `settings` are epochs, device and compile; None leaves
    the experiment's own.
    """

    out: Path
    smoke: bool = False
    resume: bool = False
    validate: bool = False
    rows: Sequence[str] = ()
    seeds: Sequence[int] = ()
    data_root: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a person sees meanwhile: lines, the display of a training run by its label,
    the display of a sweep.
    """

    tell: Callable[[str], None] = lambda line: None
    run: Callable[[str], Display] = lambda label: Display()
    sweep: SweepDisplay | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    shows: str
    results: Mapping[str, Any]
    files: Sequence[Path]


@dataclass(frozen=True, kw_only=True)
class Program:
    """An experiment that is a function of its own."""

    name: str
    title: str
    source: str
    run: str
    shows: str = "nothing"
    takes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_known("setting", self.takes, SETTINGS)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One line of the list: `takes` are the flags of the command line that mean
    something to it.
    """

    name: str
    title: str
    rows: tuple[str, ...]
    takes: frozenset[str]


def listed(name: str) -> Listed:
    """What is known of an experiment without running it."""
    found = _load(name)
    if isinstance(found, Program):
        return Listed(
            name=name, title=found.title, rows=(), takes=frozenset(found.takes)
        )
    rows = tuple(row.id for row in found.rows)
    return Listed(name=name, title=found.title, rows=rows, takes=_TRAINED_TAKES)


def known() -> list[str]:
    """The names of all experiments."""
    return sorted([*_programs(), *experiments()])


def run_experiment(name: str, request: Request, watch: Watch | None = None) -> Outcome:
    """Run it into `request.out`; the results stand beside what was published."""
    watch = watch or Watch()
    found = _load(name)
    if isinstance(found, Program):
        module, _, function = found.run.partition(":")
        results, written = getattr(importlib.import_module(module), function)(
            request, watch
        )
        return Outcome(shows=found.shows, results=results, files=written)
    chosen = (found.as_smoke() if request.smoke else found).chosen(
        list(request.rows), list(request.seeds)
    )
    chosen = replace(chosen, validate=request.validate)
    results = reproduce(
        chosen,
        request.out,
        resume=request.resume,
        data_root=request.data_root,
        display=watch.run,
        **request.settings,
    )
    return Outcome(
        shows="rows",
        results=results,
        files=[request.out / "results.json", *draw(chosen, request.out)],
    )


def _load(name: str) -> Experiment | Program:
    programs = _programs()
    if name in programs:
        document = read_toml(
            programs[name].read_text(encoding="utf-8"), f"the experiment {name!r}"
        )
        return build(Program, {"name": name, **document})
    if name not in experiments():
        raise unknown("experiment", name, known())
    return Experiment.load(name)


def _programs() -> dict[str, Path]:
    folder = Path(str(files("tersify.lab.experiments"))) / "programs"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
