"""The run directory: what a training run leaves behind, and whether a new run may go on
in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tersify.codec.atomic import write_text
from tersify.lab.trainer.config import TrainConfig
from tersify.locks import LOCK, check_unlocked

# A run may move to another device, or be compiled there, and still be the same run.
_FREE_SETTINGS = ("device", "compile", "parallel")
_ALWAYS_MEASURED = (
    "accuracy",
    "accuracy_best",
    "best_epoch",
    "file_bytes",
    "train_seconds",
)


# the folders of what may be trained before the run: its dense twin, or only its start
TWIN = "dense-twin"
START = "dense-start"


class RunDirectory:
    """Paths and small files of one run: model.terse, metrics.json, history.jsonl,
    recipe.toml, latents.json, …
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = path / "model.terse"
        self.metrics = path / "metrics.json"
        self.history = path / "history.jsonl"
        self.recipe = path / "recipe.toml"
        self.latents = path / "latents.json"
        self.checkpoint = path / "checkpoint" / "last.pt"
        self.identity = path / "checkpoint" / "run.json"

    def check_usable(self, *, resume: bool) -> None:
        """Refuse a place in use, or that holds anything but a run to be resumed; cheap,
        so it can come first.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(
                f"{self.path} is a file; the output must be a directory: give another --out"
            )
        check_unlocked(self.path)
        self._check_contents(resume=resume)

    def _check_contents(self, *, resume: bool) -> None:
        if self._is_empty() or self._never_got_anywhere():
            return
        if not resume:
            raise ValueError(
                f"{self.path} is not empty; add --resume to go on with the run in it, or give another --out"
            )
        if not self.identity.is_file():
            raise ValueError(
                f"{self.path} holds no run that could be resumed; give another --out"
            )

    def claim(self, identity: Mapping[str, Any], *, resume: bool) -> None:
        """Make the locked directory this run's own, or say why it cannot be; nothing is
        overwritten then.
        """
        self._check_contents(resume=resume)
        if self._is_empty() or self._never_got_anywhere():
            self.identity.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.identity, json.dumps(identity, indent=2, sort_keys=True))
            return
        # by a machine that stopped while it wrote
        for left in self.checkpoint.parent.glob(".*.tmp"):
            left.unlink()
        before = _read_object(self.identity)
        # settings that came later were what they are by default
        if isinstance(before.get("train"), dict):
            before["train"] = TrainConfig(epochs=1).to_dict() | before["train"]
        # Through JSON, as the stored one: tuples become lists in both.
        changed = difference(before, json.loads(json.dumps(identity)))
        if changed:
            raise ValueError(
                f"{self.path} holds a run with other settings: {changed}; "
                "resume with the same ones, or give another --out"
            )

    def _is_empty(self) -> bool:
        return not self.path.exists() or all(
            path.name in (LOCK, TWIN, START) for path in self.path.iterdir()
        )

    def _never_got_anywhere(self) -> bool:
        """A run of ours that ended before its first checkpoint: nothing in it is worth
        keeping.
        """
        kept = (self.checkpoint, self.model, self.metrics)
        return self.identity.is_file() and not any(path.exists() for path in kept)

    def write_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        write_text(
            self.history,
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
        )

    def append_history(self, row: Mapping[str, Any]) -> None:
        with self.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def write_metrics(self, metrics: Mapping[str, float]) -> None:
        """Written last: a run with metrics is finished."""
        write_text(self.metrics, json.dumps(metrics, indent=2) + "\n")

    def read_metrics(self) -> dict[str, float]:
        metrics = _read_object(self.metrics)
        for key in _ALWAYS_MEASURED:
            if not isinstance(metrics.get(key), (int, float)):
                raise ValueError(
                    f"{self.metrics} has no number for {key!r}; delete it and resume to measure again"
                )
        return metrics


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: it is not JSON ({error}); give another --out"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(
            f"{path} is damaged: it must hold a JSON object, not a {type(found).__name__}"
        )
    return found


def difference(old: Any, new: Any, name: str = "") -> str | None:
    """The first setting in which two identities differ, in words."""
    if old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        return _difference_of_tables(old, new, name)
    if isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
        return _difference_of_lines(old, new, name)
    return f"{name} was {old!r}, now {new!r}"


def _difference_of_tables(
    old: Mapping[str, Any], new: Mapping[str, Any], name: str
) -> str | None:
    """The first key, in the order of the alphabet, that differs and must not."""
    for key in sorted(old.keys() | new.keys()):
        # Where a run is trained changes nothing of what is trained.
        if key in _FREE_SETTINGS:
            continue
        inner = f"{name}.{key}" if name else key
        found = difference(old.get(key), new.get(key), inner)
        if found:
            return found
    return None


def _difference_of_lines(old: str, new: str, name: str) -> str:
    """Of two texts, such as recipes, the first line that differs is enough."""
    lines = zip(old.splitlines(), new.splitlines(), strict=False)
    differing = ((a.strip(), b.strip()) for a, b in lines if a != b)
    before, now = next(differing, ("more lines", "fewer lines"))
    return f"{name} had {before!r}, now {now!r}"
