"""Experiment: what to run, with which seeds, and what was published, read from a TOML
file of this folder.

An experiment is a file `NAME.toml` beside this one; nothing else has to be registered:

    title, source, data, seeds    what it is, where it was published, on which data set, with which seeds
    [train]                       trainer settings of every row
    [columns]                     metric = "heading" of the printed table; accuracy, sparsity, entropy unless given
    [smoke]                       what `--smoke` puts in their place: target, options, epochs, data, subset, seeds,
                                  train, and rows.ID for one row
    [[rows]]                      see `Row`
    [[figures]]                   see `figures.py`

A row is a training run unless the experiment names `measure =
"tersify.module:function"`. That function is then called as `function(row, seed=…,
out=…, smoke=…, data_root=…, **overrides)` and returns the row's figures, a mapping of
names to numbers; `out` is a folder of its own. They are kept there, so that a resumed
experiment does not call it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from tersify.lab.names import check_known, unknown
from tersify.lab.trainer import Job, TrainConfig
from tersify.methods.inputs import InputMethod, input_from_table
from tersify.recipe import InputRule, Recipe
from tersify.toml import read_toml, write_toml


@dataclass(frozen=True, kw_only=True)
class Row:
    """One network of the table.

    Its recipe is a ready one by name ("none": dense), or `methods` for the `weights` a
    glob names, with `norms` in so many bits; `activations` are methods for the inputs
    of those layers, or of `layers` where they are others. `start` names the row whose
    trained network, of the same seed, it starts from, `pretrained` a checkpoint under
    the data root; `teacher` names the row whose network it learns from. `seeds` are its
    own, where it has others than the experiment. A published figure is a number, or a
    pair where the paper gives a range; `published_spread` holds the standard deviations
    that the paper gives.
    """

    id: str
    name: str
    target: str = ""
    epochs: int = 0
    recipe: str = "none"
    methods: tuple[Mapping[str, Any], ...] = ()
    weights: str = "*"
    norms: int | None = None
    activations: tuple[Mapping[str, Any], ...] = ()
    layers: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None
    pretrained: str | None = None
    teacher: str | None = None
    seeds: tuple[int, ...] = ()
    published: Mapping[str, Any] = field(default_factory=dict)
    published_spread: Mapping[str, float] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """The rows whose networks this one uses."""
        return tuple(row for row in (self.start, self.teacher) if row is not None)

    def load_recipe(self) -> Recipe | None:
        rules: list[dict[str, Any]] = [
            {
                "activations": self.layers or self.weights,
                "methods": list(self.activations),
            }
        ]
        # A rule for activations alone leaves the weights as they are.
        rules = rules if self.activations else []
        if self.methods or (rules and self.recipe == "none"):
            weights = (
                [{"weights": self.weights, "methods": list(self.methods)}]
                if self.methods
                else []
            )
            # Through TOML, so that a row's methods pass the checks of a recipe's file.
            recipe = Recipe.from_toml(
                write_toml({"description": self.name, "rules": [*weights, *rules]})
            )
            return replace(recipe, norms=self.norms)
        if self.recipe == "none":
            return None
        recipe = Recipe.load(self.recipe)
        inputs = tuple(
            InputRule(activations=r["activations"], methods=_inputs(r["methods"]))
            for r in rules
        )
        return replace(recipe, inputs=recipe.inputs + inputs)


def _inputs(tables: list[Mapping[str, Any]]) -> tuple[InputMethod, ...]:
    return tuple(map(input_from_table, tables))


COLUMNS = {
    "accuracy": "accuracy %",
    "accuracy_best": "best epoch's %",
    "sparsity": "sparsity %",
    "entropy_bits": "entropy bit",
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    title: str
    source: str
    data: str
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    train: Mapping[str, Any] = field(default_factory=dict)
    smoke: Mapping[str, Any] = field(default_factory=dict)
    subset: int | None = None
    validate: bool = False
    columns: Mapping[str, str] = field(default_factory=lambda: dict(COLUMNS))
    figures: tuple[Mapping[str, Any], ...] = ()
    measure: str | None = None
    is_smoke: bool = False

    def __post_init__(self) -> None:
        ids = [row.id for row in self.rows]
        if len(set(ids)) != len(ids) or not ids:
            raise ValueError(
                f"experiment {self.name!r} needs rows with ids of their own, got {ids}"
            )
        for index, row in enumerate(self.rows):
            for other in row.needs:
                if other not in ids[:index]:
                    raise ValueError(
                        f"row {row.id!r} uses the network of {other!r}, which must be a row before it"
                    )
                # Seed n of a student learns from seed n of its teacher.
                missing = set(self.seeds_of(row)) - set(
                    self.seeds_of(self.rows[ids.index(other)])
                )
                if missing:
                    raise ValueError(
                        f"row {row.id!r} uses the network of {other!r} with the same seed, which has no run of "
                        f"{sorted(missing)}; give both the same seeds"
                    )
        if self.validate and self.measure is not None:
            raise ValueError(
                f"--validate is for experiments that train their rows; leave it out for {self.name}"
            )

    @classmethod
    def load(cls, name: str) -> Experiment:
        known = experiments()
        if name not in known:
            raise unknown("experiment", name, known)
        return cls.from_toml(name, known[name].read_text(encoding="utf-8"))

    @classmethod
    def from_toml(cls, name: str, text: str) -> Experiment:
        document = read_toml(text, f"the experiment {name!r}")
        rows = tuple(build(Row, table) for table in document.pop("rows", ()))
        return build(cls, {"name": name, "rows": rows, **document})

    def as_smoke(self) -> Experiment:
        """The same rows on a small network and little data: shows that the path works,
        not the figures.
        """
        own = dict(self.smoke)
        shared = {
            key: own.pop(key) for key in ("target", "options", "epochs") if key in own
        }
        special = own.pop("rows", {})
        rows = tuple(
            replace(row, train={}, seeds=(), **(shared | special.get(row.id, {})))
            for row in self.rows
        )
        return replace(
            self,
            rows=rows,
            train=own.pop("train", {}),
            seeds=tuple(own.pop("seeds")),
            is_smoke=True,
            **own,
        )

    def chosen(self, rows: list[str] | None, seeds: list[int] | None) -> Experiment:
        """Only these rows (by id), with the ones whose networks they use, and these
        seeds.
        """
        ids = [row.id for row in self.rows]
        check_known(f"row of {self.name}", rows or (), ids)
        needed = set(rows or ids)
        # Backwards, since a row needs only rows before it: one pass finds needs of
        # needs.
        for row in reversed(self.rows):
            if row.id in needed:
                needed.update(row.needs)
        picked = tuple(
            replace(row, seeds=() if seeds else row.seeds)
            for row in self.rows
            if row.id in needed
        )
        return replace(self, rows=picked, seeds=tuple(seeds or self.seeds))

    def seeds_of(self, row: Row) -> tuple[int, ...]:
        return row.seeds or self.seeds

    def job(self, row: Row, seed: int, home: Path, **overrides: Any) -> Job:
        recipe = row.load_recipe()
        # Published figures belong to the statistics of training, unless an experiment
        # says otherwise.
        own = {**(recipe.train if recipe else {}), **self.train, **row.train}
        settings = {"recalibrate": False, **own, "epochs": row.epochs}
        if row.teacher is not None:
            settings["teacher"] = str(run_path(home, row.teacher, seed) / "model.terse")
        weights = (
            run_path(home, row.start, seed) / "model.terse"
            if row.start
            else row.pretrained
        )
        return Job(
            target=row.target,
            options=row.options,
            data=self.data,
            subset=self.subset,
            validate=self.validate,
            recipe=recipe,
            config=TrainConfig.from_mapping(settings, seed=seed, **overrides),
            weights=Path(weights) if weights else None,
        )


def run_path(home: Path, row_id: str, seed: int) -> Path:
    return home / row_id / f"seed-{seed}"


def experiments() -> dict[str, Path]:
    """The experiments that train their rows, by name; `registry.py` knows the others
    too.
    """
    folder = Path(str(files("tersify.lab.experiments")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def build(kind: Any, table: Mapping[str, Any]) -> Any:
    """A frozen description from its TOML table; an unknown key is an error."""
    known = [spec.name for spec in fields(kind)]
    check_known(f"key of an experiment's {kind.__name__.lower()}", table, known)
    return kind(
        **{
            key: tuple(value) if isinstance(value, list) else value
            for key, value in table.items()
        }
    )
