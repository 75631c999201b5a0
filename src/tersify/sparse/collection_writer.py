"""`collect`: the sparse products of a network, written to a folder that exists whole or
not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tersify.checks import check_whole
from tersify.codec.atomic import write_text
from tersify.locks import alone
from tersify.sparse.collection import Collection
from tersify.sparse.collection_facts import method_of, model_facts, recipe_text
from tersify.sparse.collection_index import (
    ARRAYS,
    FORMAT,
    INDEX,
    INPUT_FIRST,
    VERSION,
    WEIGHT_FIRST,
)
from tersify.sparse.formats import FORMATS, Array, Entries, Matrix
from tersify.sparse.input_rows import SAMPLING, Record, as_array, record
from tersify.sparse.lowering import COLUMNS_LAYOUT, WEIGHT_LAYOUT, multiply
from tersify.sparse.matrix_statistics import describe, fraction
from tersify.sparse.npz import to_npz

if TYPE_CHECKING:
    from tersify.recipe import Recipe

ORDERS = ("auto", WEIGHT_FIRST, INPUT_FIRST)
RELATIVE_TOLERANCE = 1e-5


def collect(
    model: nn.Module,
    example: Tensor | tuple[Any, ...] | Mapping[str, Any],
    *,
    out: str | os.PathLike[str],
    name: str | None = None,
    format: str = "csr",
    columns: int = 256,
    min_sparsity: float = 0.1,
    order: str = "auto",
    append: bool = False,
    recipe: str | Path | Recipe | None = None,
    accuracy: float | None = None,
    licence: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Collection:
    """Run `model` on `example` and store every product with a sparse weight in the new
    folder `out`.

    Args:
        model: a network with sparse weights.
        example: one calibration batch: a tensor, a tuple of arguments or a mapping of keyword arguments.
        out: the folder to write; it must not be there, unless `append`.
        name: what the network is called in the collection; by default its class.
        format: how weights are stored, one of the sparse formats, or "best" for the fewest bytes.
        columns: of each product's input vectors at most so many are kept, drawn with a fixed seed.
        min_sparsity: a weight counts as sparse from this fraction of zeros on; 0 takes every layer.
        order: "W@X", "X@W.T", or "auto": the first for convolutions, the second for everything else.
        append: add to a collection that is there.
        recipe: goes into the index; a network from `tersify.load` brings its own along.
        accuracy: in percent, for the index.
        licence: of the weights, for the index.
        metadata: anything JSON can hold, for the index.
    """
    folder, model_name = Path(out), name or type(model).__name__
    _check_arguments(
        format=format,
        columns=columns,
        min_sparsity=min_sparsity,
        order=order,
        name=model_name,
    )
    old = _old_index(folder, model_name, append=append)
    records, skipped = record(model, example, rows=columns, min_sparsity=min_sparsity)
    if not records:
        raise ValueError(
            f"{model_name} has no layer with at least {100 * min_sparsity:g} % zeros among those that were called"
            f"{''.join(f'; {key}: {why}' for key, why in list(skipped.items())[:3])}; "
            "prune it first, lower min_sparsity, or set it to 0 (--dense) to collect dense layers"
        )
    text = recipe_text(model, recipe)
    facts = model_facts(model, records, text) | {
        "accuracy": accuracy,
        "licence": licence or "not stated",
    }
    with _staged(folder, append=append) as staging:
        if append:  # again: another process may have added to it while the network ran
            old = _old_index(folder, model_name, append=True)
        old["models"][model_name] = facts | {"skipped": skipped, **(metadata or {})}
        for number, each in enumerate(records, start=len(old["operations"])):
            stored = _operation(
                each, staging / ARRAYS, number, format=format, order=order
            )
            stored |= {
                "name": f"{model_name}/{each.name}",
                "model": model_name,
                **method_of(text, each.parameter),
            }
            old["operations"].append(stored)
        write_text(staging / INDEX, json.dumps(old, indent=1))
    return Collection(folder)


def _check_arguments(
    *, format: str, columns: int, min_sparsity: float, order: str, name: str
) -> None:
    if format not in FORMATS and format != "best":
        raise ValueError(
            f"unknown format {format!r}; known: {', '.join(FORMATS)}, best"
        )
    check_whole("columns", columns, low=1)
    if not 0 <= min_sparsity <= 1:
        raise ValueError(
            f"min_sparsity is a fraction of zeros, 0..1, got {min_sparsity}"
        )
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    if not re.fullmatch(r"[\w.:@+-]{1,100}", name):
        raise ValueError(
            f"a network's name in a collection has letters, digits and ._:@+- only, got {name!r}"
        )


def _old_index(folder: Path, name: str, *, append: bool) -> dict[str, Any]:
    """What is there already; a folder with anything in it is never written to without
    `append`.
    """
    if append and folder.exists():
        # Opened as any collection, so that nothing is added to a damaged one.
        index = Collection(folder)._index
        if name in index["models"]:
            raise ValueError(
                f"{folder} holds a network {name!r} already; give this one another name"
            )
        return index
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{folder} is not empty; give a new folder, or append to the collection in it"
        )
    return {"format": FORMAT, "version": VERSION, "models": {}, "operations": []}


@contextmanager
def _staged(folder: Path, *, append: bool) -> Iterator[Path]:
    """A place to write: a new folder appears whole at the end; an old one gets its new
    arrays, then its new index.

    An empty folder stays the one it was, for the shell that stands in it or the disk
    that is mounted there.
    """
    if append and folder.exists():
        with alone(folder):
            # An error takes away only what this call has added.
            before = {path.name for path in (folder / ARRAYS).iterdir()}
            try:
                yield folder
            except BaseException:
                for path in (folder / ARRAYS).iterdir():
                    if path.name not in before:
                        path.unlink()
                raise
        return
    found = folder.exists()
    hidden = f".{folder.name}.{secrets.token_hex(8)}.tmp"
    staging = folder / hidden if found else folder.with_name(hidden)
    try:
        (staging / ARRAYS).mkdir(parents=True)
        yield staging
        if found:
            # The index last: a folder without one counts as unfinished.
            for name in (ARRAYS, INDEX):
                os.replace(staging / name, folder / name)
            staging.rmdir()
        else:
            os.replace(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _operation(
    each: Record, folder: Path, number: int, *, format: str, order: str
) -> dict[str, Any]:
    weight_first = order == WEIGHT_FIRST or (order == "auto" and _convolves(each))
    rows = as_array(torch.cat(each.rows))
    weight = Entries.of(each.weight)
    # The reference product is computed in double precision from the stored operands, so
    # no backend's rounding is the norm.
    double = torch.from_numpy(each.weight).double(), torch.from_numpy(rows.T).double()
    groups = each.product.groups
    output = multiply(*double, groups).numpy().astype(each.weight.dtype) + 0  # no −0.0
    # Σ|w·x| bounds the rounding error of a sum in any order of its terms.
    scale = float(multiply(double[0].abs(), double[1].abs(), groups).max())
    if not np.isfinite(scale):
        raise ValueError(
            f"{each.name}: its weight or its input holds NaN or infinity, with which nothing can be compared"
        )
    x, y = (rows.T, output) if weight_first else (rows, output.T)
    matrices = {
        "weight": Matrix.packed(weight, format),
        "input": _smaller(np.ascontiguousarray(x)),
        "output": Matrix.of(np.ascontiguousarray(y), "dense"),
    }
    inputs = Entries.of(matrices["input"].to_dense())
    facts = {
        "weight": describe(weight),
        "input": {"density": fraction(len(inputs.values), rows.size)},
        "output": {},
    }
    stored: dict[str, Any] = {
        "layer": each.layer,
        "parameter": each.parameter,
        "kind": each.product.kind,
        "M": each.weight.shape[0],
        "N": len(rows),
        "K": each.weight.shape[1],
        "groups": groups,
        "order": WEIGHT_FIRST if weight_first else INPUT_FIRST,
        "dtype": str(each.product.weight.dtype).removeprefix("torch."),
        "columns": {
            "kept": len(rows),
            "of": each.count,
            "rule": SAMPLING if len(rows) < each.count else "all",
        },
        "calls": each.calls,
        "tolerance": RELATIVE_TOLERANCE * scale,
        **{key: value for key, value in each.product.facts.items() if key != "layout"},
        **each.facts,
        "layout": _layout(each, weight_first=weight_first),
    }
    if each.results:
        # How far the layer itself, with its own kernels, is from the stored output.
        stored["layer_error"] = float(
            np.abs(as_array(torch.cat(each.results)) - output.T).max(initial=0.0)
        )
    for operand, matrix in matrices.items():
        stored[operand] = facts[operand] | _write(
            matrix, folder / f"{number:05d}-{operand}.npz"
        )
    return stored


def _convolves(each: Record) -> bool:
    return each.product.kind.startswith("conv")


def _layout(each: Record, *, weight_first: bool) -> dict[str, str]:
    """How weight and input lie, in words; the words for the input are those of the
    layer's natural order.
    """
    natural = (
        {"weight": WEIGHT_LAYOUT, "input": COLUMNS_LAYOUT}
        if _convolves(each)
        else {"weight": "as in the layer"}
    )
    natural |= each.product.facts.get("layout", {})
    return (
        natural
        if weight_first == _convolves(each)
        else natural | {"input": f"transposed: {natural['input']}"}
    )


def _smaller(dense: Array) -> Matrix:
    """Activations: dense or CSR, whichever has fewer bytes; both are Binsparse's own."""
    return min(
        (Matrix.of(dense, name) for name in ("dense", "csr")),
        key=lambda matrix: matrix.size_bytes,
    )


def _write(matrix: Matrix, path: Path) -> dict[str, Any]:
    data = to_npz(matrix)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    facts = {
        "file": path.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "file_bytes": len(data),
        "format": matrix.format,
    }
    return facts | {"array_bytes": matrix.size_bytes}
