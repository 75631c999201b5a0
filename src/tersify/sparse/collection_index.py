"""The index of a collection: what it must say, checked before anything is believed."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tersify.sparse.collection_error import CollectionError
from tersify.sparse.formats import FORMATS

INDEX = "collection.json"
ARRAYS = "arrays"
FORMAT = "tersify-collection"
VERSION = 1
WEIGHT_FIRST = "W@X"
INPUT_FIRST = "X@W.T"
OPERANDS = ("weight", "input", "output")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\.npz")
_TEXTS = ("name", "kind", "model")
_SIZES = ("M", "N", "K", "groups")


def read_index(path: Path) -> dict[str, Any]:
    """The index of the folder `path`, whose array files are there with the sizes it
    tells.
    """
    file = path / INDEX
    if not path.is_dir():
        raise CollectionError(
            f"{path} is no folder; a collection is one that `tersify collect` wrote"
        )
    if not file.is_file():
        raise CollectionError(
            f"{path} holds no {INDEX}: it is empty, or writing it never finished; collect again"
        )
    try:
        # RecursionError below: brackets nested deep enough exhaust Python's stack.
        index = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CollectionError(
            f"{file} is damaged or cut short ({error}); collect again"
        ) from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise CollectionError(f"{file} is not the index of a collection")
    if index.get("version") != VERSION:
        raise CollectionError(
            f"{file} has version {index.get('version')!r}; this program reads version {VERSION}"
        )
    try:
        _check(index, path)
    except (KeyError, TypeError, AttributeError) as error:
        raise CollectionError(
            f"{file} lacks what an index must say ({type(error).__name__}: {error})"
        ) from None
    return index


def _check(index: Mapping[str, Any], path: Path) -> None:
    if not index["operations"]:
        raise CollectionError(f"{path / INDEX} lists no operation; collect again")
    folder = path / ARRAYS
    found = (
        {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
        if folder.is_dir()
        else {}
    )
    names = set()
    for record in index["operations"]:
        _check_record(record)
        if not isinstance(index["models"].get(record["model"]), dict):
            raise CollectionError(
                f"{record['name']}: its model {record['model']!r} is missing"
            )
        if record["name"] in names:
            raise CollectionError(f"{path / INDEX} lists {record['name']!r} twice")
        names.add(record["name"])
        for operand in OPERANDS:
            file, size = record[operand]["file"], record[operand]["file_bytes"]
            # No folders and no dots: an index must not reach files outside of its
            # folder.
            if not _FILE_NAME.fullmatch(file):
                raise CollectionError(
                    f"{record['name']}: {file!r} is no name of an array file"
                )
            if found.get(file) != size:
                state = (
                    f"has {found[file]} bytes, not {size}"
                    if file in found
                    else "is missing"
                )
                raise CollectionError(
                    f"{record['name']}: its {operand} {folder / file} {state}; collect again"
                )


def _check_record(record: Mapping[str, Any]) -> None:
    """Everything that this program computes with later is of the right kind."""
    name = record["name"]
    if not all(isinstance(record[key], str) and record[key] for key in _TEXTS):
        raise CollectionError(f"operation {name!r} has no proper name, kind or model")
    sizes = [record[key] for key in _SIZES]
    if (
        not all(type(size) is int and size > 0 for size in sizes)
        or record["M"] % record["groups"]
    ):
        raise CollectionError(f"{name}: the sizes {sizes} are impossible")
    if record["order"] not in (WEIGHT_FIRST, INPUT_FIRST):
        raise CollectionError(f"{name}: the order {record['order']!r} is impossible")
    _check_figures(name, record)
    if "geometry" in record:
        _check_kernel(name, record["geometry"]["kernel"], record["K"])


def _check_figures(name: str, record: Mapping[str, Any]) -> None:
    """Statistics are finite and not negative, and formats are known ones."""
    weight = record["weight"]
    figures = [
        record["tolerance"],
        weight["density"],
        record["input"]["density"],
        weight["nnz"],
        record["columns"]["of"],
    ]
    figures += [
        *weight["format_bytes"].values(),
        *weight["n_m"].values(),
        weight["array_bytes"],
    ]
    named = {weight["format"], weight["best_format"]}
    knows_formats = (
        weight["format_bytes"].keys() == FORMATS.keys() and named <= FORMATS.keys()
    )
    if not knows_formats or not all(map(_is_figure, figures)):
        raise CollectionError(
            f"{name}: its tolerance and statistics are no numbers: {figures}"
        )


def _is_figure(value: object) -> bool:
    """A number from 0 on; `type` and not isinstance, since true is no figure."""
    if type(value) is int:
        return value >= 0
    return type(value) is float and 0 <= value < math.inf


def _check_kernel(name: str, kernel: Sequence[object], k: int) -> None:
    """K counts the kernel's places for each input channel, so they divide it."""
    sizes = [size for size in kernel if type(size) is int and size > 0]
    if len(sizes) != len(kernel) or k % math.prod(sizes):
        raise CollectionError(f"{name}: a kernel of {kernel} does not fit K = {k}")
