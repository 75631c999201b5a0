"""Run: what lies in a run directory, read as files; whatever is missing or damaged is
left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from tersify import codec
from tersify.report.weight_histograms import Contents, read_contents

TWIN = "dense-twin"
_MARKS = ("metrics.json", "history.jsonl", "model.terse")
_LARGEST = 1e30
_DEPTH = 3  # of run directories below the one that is named: experiment / row / seed


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run. `notes` says in a sentence each what could not be read."""

    path: Path
    name: str
    metrics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    recipe: str = ""
    identity: dict[str, Any] = field(default_factory=dict)
    latents: dict[str, Any] = field(default_factory=dict)
    bench: dict[str, Any] = field(default_factory=dict)
    contents: Contents | None = None
    notes: tuple[str, ...] = ()

    def figure(self, key: str) -> float | None:
        """A figure of the finished run, else of its last epoch, else of its file; bytes
        are always the file's own.
        """
        of_file = self._file_figures()
        sources = (self.metrics, self.history[-1] if self.history else {}, of_file)
        # The file may have been written again since, by a machine with other coders.
        for source in (of_file, *sources) if key == "file_bytes" else sources:
            if key in source:
                return source[key]
        return None

    def _file_figures(self) -> dict[str, float]:
        facts = self.contents.facts if self.contents else {}
        known: dict[str, float] = {
            key: facts[key] for key in ("file_bytes", "dense_bytes") if key in facts
        }
        if self.contents and self.contents.codes:
            known |= {key: facts[key] for key in ("sparsity", "entropy_bits")}
        return known

    @property
    def is_finished(self) -> bool:
        return bool(self.metrics) or self.contents is not None

    @property
    def is_compressed(self) -> bool:
        return self.figure("sparsity") is not None

    @property
    def data(self) -> str:
        return str(self.metadata.get("data") or self.identity.get("data") or "")

    @property
    def network(self) -> str:
        target = self.metadata.get("target")
        return str(target.get("name", "")) if isinstance(target, dict) else ""

    def twin_key(self) -> str:
        """Equal for runs of the same network on the same data; how its weights began
        makes no other network.
        """
        target = self.metadata.get("target")
        if isinstance(target, dict) and isinstance(target.get("options"), dict):
            # The same network from other initial weights has the same dense twin.
            target = target | {
                "options": {k: v for k, v in target["options"].items() if k != "init"}
            }
        return json.dumps([target, self.data], sort_keys=True, default=str)

    @property
    def metadata(self) -> dict[str, Any]:
        own = self.contents.facts.get("metadata") if self.contents else None
        found = own or self.identity.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def times_smaller(self) -> float | None:
        dense, packed = self.figure("dense_bytes"), self.figure("file_bytes")
        return dense / packed if dense and packed else None

    @property
    def file_bits_per_weight(self) -> float | None:
        """Bits in the whole file for each parameter of the network."""
        packed, weights = self.figure("file_bytes"), self.figure("parameters")
        return 8 * packed / weights if packed and weights else None

    def column(self, key: str) -> tuple[list[float], list[float]]:
        """The epochs that have `key`, and its values."""
        rows = [row for row in self.history if key in row and "epoch" in row]
        return [row["epoch"] for row in rows], [row[key] for row in rows]


def find_runs(directories: Iterable[Path]) -> list[Run]:
    """The runs in these directories, or in the ones below them, each under a name of
    its own.
    """
    paths: dict[Path, None] = {}
    for directory in directories:
        if not directory.is_dir():
            raise ValueError(
                f"{directory} is no directory; give a run directory, or one that holds some"
            )
        found = list(_search(directory, _DEPTH))
        if not found:
            raise ValueError(
                f"{directory} holds no run: none of {', '.join(_MARKS)} lies in it or below; "
                "give what `tersify compress --out` wrote"
            )
        paths |= dict.fromkeys(path.resolve() for path in found)
    names = _names(list(paths))
    return [read_run(path, name) for path, name in zip(paths, names, strict=True)]


def _search(directory: Path, depth: int) -> Iterable[Path]:
    if _is_run(directory):
        yield directory
        if _is_run(directory / TWIN):
            yield directory / TWIN
        # A run's own folders, such as its checkpoint, hold no other runs.
        return
    if depth == 0:
        return
    for child in sorted(directory.iterdir()):
        if child.is_dir() and not child.name.startswith("."):
            yield from _search(child, depth - 1)


def _is_run(directory: Path) -> bool:
    return any((directory / mark).is_file() for mark in _MARKS)


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    for parts in range(1, max(len(p.parts) for p in paths) + 1):
        names = ["/".join(p.parts[-parts:]) for p in paths]
        if len(set(names)) == len(names):
            break
    return names


def read_run(path: Path, name: str) -> Run:
    """The run in `path`, whatever of it is there."""
    notes: list[str] = []
    contents = None
    if (path / "model.terse").is_file():
        try:
            contents = read_contents(path / "model.terse")
        except (codec.TerseFileError, OSError) as error:
            notes.append(f"model.terse could not be read: {error}")
    return Run(
        path=path,
        name=name,
        metrics=_numbers(_json(path / "metrics.json", notes)),
        history=_history(path / "history.jsonl"),
        recipe=_text(path / "recipe.toml"),
        identity=_json(path / "checkpoint" / "run.json", notes),
        latents=_json(path / "latents.json", notes),
        bench=_json(path / "bench.json", notes),
        contents=contents,
        notes=tuple(notes),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _json(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    notes.append(f"{path.name} is no JSON object")
    return {}


def _history(path: Path) -> list[dict[str, float]]:
    """The rows that are whole: a run that is still being written may end in half a
    line.
    """
    rows = []
    for line in _text(path).splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and _numbers(row):
            rows.append(_numbers(row))
    return rows


def _numbers(table: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in table.items() if is_number(value)}


def is_number(value: object) -> TypeGuard[float]:
    """A figure that can be drawn: not NaN, not infinite, and not of a size that only
    damage has.
    """
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and -_LARGEST < value < _LARGEST
    )
