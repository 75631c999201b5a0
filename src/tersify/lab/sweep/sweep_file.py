"""Sweep: what to train, which fields may vary and what is wanted of them, read from a
TOML file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from tersify.checks import check_choice, check_given, check_whole, is_number_of
from tersify.lab.names import check_known
from tersify.lab.sweep.fields import RECIPE, check_field, meant_for, with_values
from tersify.lab.sweep.space import Parameter
from tersify.lab.trainer import Job, TrainConfig
from tersify.recipe import Recipe
from tersify.toml import read_toml, write_toml
from tersify.userfile import names_function

OBJECTIVES: dict[str, Literal["minimize", "maximize"]] = {
    "accuracy": "maximize",
    "accuracy_best": "maximize",
    "sparsity": "maximize",
    "entropy_bits": "minimize",
    "file_bytes": "minimize",
    "latency_ms": "minimize",
    "train_seconds": "minimize",
}
SAMPLERS = ("tpe", "nsga2", "grid", "random")
PRUNERS = ("none", "median", "hyperband")
# what a pruner can judge after each epoch
WHILE_TRAINING = ("accuracy", "sparsity", "entropy_bits")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one trial needs. `workers` trials run at once under Ray: as many as fit
    where it is not given.
    """

    cpus: int = 1
    gpus: float = 0
    retries: int = 2
    workers: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("cpus", 1), ("gpus", 0), ("retries", 0), ("workers", 1)):
            value = getattr(self, name)
            kinds = (int, float) if name == "gpus" else (int,)
            fits = is_number_of(value, kinds) and least <= value < math.inf
            if value is not None and not fits:
                raise ValueError(
                    f"resources: {name} must be a number from {least} on, got {value!r}"
                )


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """`recipe` is a ready one, a TOML file or none; `rules` in the file itself take its
    place.
    """

    name: str
    target: str
    data: str
    space: tuple[Parameter, ...]
    objectives: tuple[str, ...]
    title: str = ""
    recipe: str = "none"
    rules: tuple[Mapping[str, Any], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    subset: int | None = None
    trials: int | None = None
    seed: int = 0
    sampler: str = "tpe"
    pruner: str = "none"
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        if not self.space:
            raise ValueError(
                f'sweep {self.name!r} has an empty space; give [space] a field such as "train.lr"'
            )
        if not self.objectives:
            raise ValueError(
                f"sweep {self.name!r} has no objectives; give some of {', '.join(OBJECTIVES)}"
            )
        check_known("objective", self.objectives, OBJECTIVES)
        if len(set(self.objectives)) != len(self.objectives):
            raise ValueError(
                f"sweep {self.name!r} names an objective twice: {', '.join(self.objectives)}"
            )
        check_choice("sampler", self.sampler, SAMPLERS)
        check_choice("pruner", self.pruner, PRUNERS)
        # A pruner needs one figure after every epoch; a file's bytes are known at the
        # end only.
        if self.pruner != "none" and (
            len(self.objectives) > 1 or self.objectives[0] not in WHILE_TRAINING
        ):
            raise ValueError(
                f"pruner {self.pruner!r} judges one figure after each epoch ({', '.join(WHILE_TRAINING)}), and the "
                f'objectives are {", ".join(self.objectives)}; set pruner = "none", or ask for one of those'
            )
        for what, value, least in (
            ("trials", self.trials, 1),
            ("subset", self.subset, 1),
            ("seed", self.seed, 0),
        ):
            check_given(check_whole, what, value, low=least)
        self._check_space()

    def _check_space(self) -> None:
        """Every field exists, and at least one of its values makes a job; combinations
        may still fail as trials.
        """
        varied = next((p for p in self.space if p.field == RECIPE), None)
        names = list(map(str, varied.ends())) if varied else []
        recipes = list(map(self._load, names)) or [self._load(None)]
        for parameter in self.space:
            check_field(
                parameter.field, [recipe for recipe in recipes if recipe is not None]
            )
            # A single bad combination is one failed trial; a field whose every value
            # fails is a mistake in the file.
            problems = [
                problem
                for value in parameter.ends()
                if (problem := self._problem({parameter.field: value}))
            ]
            if len(problems) == len(parameter.ends()):
                raise ValueError(
                    f"space: no value of {parameter.field!r} works: {problems[0]}"
                )
        if self.sampler == "grid":
            for parameter in self.space:
                parameter.grid()
        elif self.trials is None:
            raise ValueError(
                f"sampler {self.sampler!r} goes on for ever; give trials = N"
            )

    def _problem(self, values: Mapping[str, Any]) -> str:
        try:
            self.job(values)
        except ValueError as error:
            return str(error)
        return ""

    @property
    def count(self) -> int:
        """How many trials there will be."""
        points = (
            math.prod(len(p.grid()) for p in self.space)
            if self.sampler == "grid"
            else None
        )
        # A grid ends at its last point, or earlier where trials says so.
        wanted = [n for n in (self.trials, points) if n is not None]
        return min(wanted)

    def job(self, values: Mapping[str, Any]) -> Job:
        """The training run with these values of the space."""
        recipe = with_values(self._load(values.get(RECIPE)), values)
        settings = {
            **(recipe.train if recipe else {}),
            **self.train,
            **meant_for("train", values),
        }
        return Job(
            target=self.target,
            data=self.data,
            subset=self.subset,
            options={**self.options, **meant_for("options", values)},
            recipe=recipe,
            config=TrainConfig.from_mapping(settings),
        )

    def _load(self, name: str | None) -> Recipe | None:
        if name is None and self.rules:
            return Recipe.from_toml(write_toml({"rules": list(map(dict, self.rules))}))
        chosen = self.recipe if name is None else name
        return None if chosen == "none" else Recipe.load(chosen)

    @classmethod
    def load(cls, path: Path) -> Sweep:
        if not path.is_file():
            raise ValueError(
                f"no sweep file at {path}; write one as docs/how-to/scale.md shows"
            )
        try:
            return cls.from_toml(
                path.stem, path.read_text(encoding="utf-8"), folder=path.parent
            )
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None

    @classmethod
    def from_toml(cls, name: str, text: str, *, folder: Path = Path()) -> Sweep:
        """Files it names lie beside it."""
        document = read_toml(text, f"the sweep {name!r}")
        known = [spec.name for spec in fields(cls) if spec.name != "name"]
        check_known("key of a sweep", document, known)
        for key in ("target", "data", "objectives"):
            if key not in document:
                raise ValueError(f"a sweep needs {key} = …")
        if isinstance(document["objectives"], str):
            document["objectives"] = [document["objectives"]]
        _check_kinds(document)
        own = [spec.name for spec in fields(Resources)]
        check_known("resource", document.get("resources", {}), own)
        # Kinds were checked above, so a space is a table here.
        document["space"] = tuple(
            Parameter.read(f, given) for f, given in document.get("space", {}).items()
        )
        document["resources"] = Resources(**document.get("resources", {}))
        for key in ("recipe", "target"):
            document[key] = _relative_to_sweep(folder, document.get(key, "none"))
        tuples = {
            key: tuple(value)
            for key, value in document.items()
            if isinstance(value, list)
        }
        return cls(name=name, **(document | tuples))

    def identity(self) -> dict[str, Any]:
        """What must stay the same for a sweep to go on; it may get more trials or other
        resources.
        """
        free = ("title", "trials", "resources", "space")
        told = {
            spec.name: getattr(self, spec.name)
            for spec in fields(self)
            if spec.name not in free
        }
        recipe = self._load(None)
        rules = "" if recipe is None else replace(recipe, description="").describe()
        return told | {
            "rules": rules,
            "space": {p.field: p.to_dict() for p in self.space},
        }


def _check_kinds(document: Mapping[str, Any]) -> None:
    """Text, lists and tables are where they belong; numbers check themselves."""
    for key, value in document.items():
        if key in ("target", "data", "recipe", "title"):
            what, fits = "text", isinstance(value, str)
        elif key == "objectives":
            what, fits = "a list of text", _all_are(str, value)
        elif key == "rules":
            what, fits = "tables [[rules]]", _all_are(dict, value)
        elif key in ("space", "resources", "options", "train"):
            what, fits = f"a table [{key}]", isinstance(value, dict)
        else:
            continue
        if not fits:
            raise ValueError(f"{key} must be {what}, got {value!r}")


def _all_are(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _relative_to_sweep(folder: Path, name: str) -> str:
    """A file's own path where `name` names one beside the sweep's file; Ray's workers
    start elsewhere.
    """
    path, colon, function = (
        name.rpartition(":") if names_function(name) else (name, "", "")
    )
    own = folder / path
    return (
        f"{own.resolve()}{colon}{function}"
        if path.endswith((".toml", ".py")) and own.is_file()
        else name
    )
