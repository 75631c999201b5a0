"""A collection in other people's formats: Matrix Market, DLMC, FROSTT, and Timeloop's
problem descriptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tersify.sparse.collection import Collection, Operation
from tersify.sparse.formats import Matrix
from tersify.sparse.lowering import Geometry, raise_weight
from tersify.sparse.matrix_statistics import TILES, tile_counts

if TYPE_CHECKING:
    from tersify.sparse.formats import Entries

DIGITS = 9  # decimal digits that tell apart any two float32


def export(collection: Collection, format: str, out: Path) -> list[Path]:
    """Write each operation; `out` must be new or empty."""
    if format not in EXPORTS:
        raise ValueError(f"unknown export {format!r}; known: {', '.join(EXPORTS)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty; give a new folder, or remove it first")
    out.mkdir(parents=True, exist_ok=True)
    write = EXPORTS[format]
    stems = _stems(collection)
    return [
        path
        for op, stem in zip(collection, stems, strict=True)
        for path in write(op, out / stem)
    ]


def _stems(collection: Collection) -> list[str]:
    """A file's name for each operation; one that another has already gets the
    operation's place behind it.
    """
    stems: dict[str, None] = {}
    for place, name in enumerate(collection.names):
        stem = re.sub(r"[^\w.-]", "_", name.replace("/", "__"))
        # Two names may differ only in characters that a file name cannot have.
        while stem in stems:
            stem += f"-{place}"
        stems[stem] = None
    return list(stems)


def _behind(stem: Path, suffix: str) -> Path:
    return stem.with_name(stem.name + suffix)


def _digits(op: Operation) -> int:
    return DIGITS if op.weight.arrays["values"].dtype == np.float32 else 17


def _matrix_market(op: Operation, stem: Path) -> list[Path]:
    try:
        from scipy import io, sparse
    except ImportError:
        raise ValueError(
            "Matrix Market files are written by the package scipy; pip install 'tersify[sparse]'"
        ) from None

    paths = []
    for operand, stored in (
        ("weight", op.weight),
        ("input", op.input),
        ("output", Matrix.of(op.output, "dense")),
    ):
        path = _behind(stem, f".{operand}.mtx")
        e = stored.entries()
        sparsely = operand == "weight" or stored.format != "dense"
        data = (
            sparse.coo_array((e.values, (e.rows, e.columns)), shape=e.shape)
            if sparsely
            else stored.to_dense()
        )
        comment = f" {op.name}: {operand} of {op.order}, {op.kind}"
        io.mmwrite(
            path, data, comment=comment, precision=_digits(op), symmetry="general"
        )
        paths.append(path)
    return paths


def _dlmc(op: Operation, stem: Path) -> list[Path]:
    """Three lines: sizes, row pointers, column indices. The pattern only: DLMC has no
    values.
    """
    path = _behind(stem, ".smtx")
    csr = op.weight.to("csr")
    height, width = csr.shape
    lines = [f"{height}, {width}, {len(csr.arrays['values'])}"]
    lines += [
        " ".join(map(str, csr.arrays[name].tolist()))
        for name in ("pointers", "columns")
    ]
    path.write_text("\n".join(lines) + "\n")
    return [path]


def _frostt(op: Operation, stem: Path) -> list[Path]:
    """One line an entry, its places counted from 1, then its value; a convolution's
    weight with all its dimensions.
    """
    path = _behind(stem, ".tns")
    weight = torch.from_numpy(op.weight.to_dense())
    if "geometry" in op.meta:
        stored = {
            key: value
            for key, value in op.meta["geometry"].items()
            if key != "input_size"
        }
        weight = raise_weight(weight, Geometry.from_mapping(stored))
    # FROSTT counts indices from 1.
    places = weight.nonzero()
    rows = zip((places + 1).tolist(), weight[tuple(places.T)].tolist(), strict=True)
    digits = _digits(op)
    path.write_text(
        "".join(
            f"{' '.join(map(str, place))} {value:.{digits}g}\n" for place, value in rows
        )
    )
    return [path]


def _timeloop(op: Operation, stem: Path) -> list[Path]:
    """A Timeloop v0.4 problem with the densities Sparseloop takes, and the measured
    tile occupancies beside it.
    """
    m, _, k = op.shape
    # N is that of the real layer: a collection keeps only a sample of its columns.
    sizes = {"M": m // op.groups, "N": op.meta["columns"]["of"], "K": k}
    group = [[["G"]]] if op.groups > 1 else []
    if op.groups > 1:
        sizes["G"] = op.groups
    spaces = [
        {"name": "Weights", "projection": [*group, [["M"]], [["K"]]]},
        {"name": "Inputs", "projection": [*group, [["K"]], [["N"]]]},
        {
            "name": "Outputs",
            "projection": [*group, [["M"]], [["N"]]],
            "read_write": True,
        },
    ]
    densities = {
        "Weights": _density(op.meta["weight"]["density"], op.meta["weight"]["n_m"]),
        "Inputs": _density(op.meta["input"]["density"], {}),
    }
    problem = {
        "version": 0.4,
        "shape": {
            "name": "MatrixMultiply",
            "dimensions": list(sizes),
            "data_spaces": spaces,
        },
        "instance": sizes | {"densities": densities},
    }
    occupancy = {
        "operation": op.name,
        "Weights": {
            f"{tile}x{tile}": _occupancy(op.weight.entries(), tile) for tile in TILES
        },
        "Inputs": {
            f"{tile}x{tile}": _occupancy(op.input.entries(), tile) for tile in TILES
        },
    }
    paths = [_behind(stem, ".problem.yaml"), _behind(stem, ".occupancy.yaml")]
    paths[0].write_text(to_yaml({"problem": problem}))
    paths[1].write_text(to_yaml({"tile_occupancy": occupancy}))
    return paths


def _density(density: float, compliance: Mapping[str, float]) -> dict[str, Any]:
    """Fixed where every tile holds equally much (dense, or a full N:M pattern), else as
    if places were drawn.
    """
    # Every group complies and the density is N/M exactly, so each group holds N.
    full = any(
        all_comply == 1.0 and density == int(nm[0]) / int(nm[2:])
        for nm, all_comply in compliance.items()
    )
    return {
        "distribution": "fixed_structured"
        if full or density == 1.0
        else "hypergeometric",
        "density": density,
    }


def _occupancy(entries: Entries, tile: int) -> dict[str, Any]:
    """How the non-zeros of a tile are distributed: the fraction of the tiles that hold so
    many.
    """
    counts = tile_counts(entries, tile)
    values, times = np.unique(counts, return_counts=True)
    return {
        "tiles": len(counts),
        "mean": float(counts.mean()),
        "std": float(counts.std()),
        "max": int(counts.max()),
        "distribution": {
            int(value): float(count / len(counts))
            for value, count in zip(values, times, strict=True)
        },
    }


def to_yaml(value: Any, indent: int = 0) -> str:
    """Mappings over lines; lists and plain values in the JSON form that YAML includes."""
    # No YAML library: what is written needs only this much of the language.
    lines = []
    for key, entry in value.items():
        head = "  " * indent + f"{key}:"
        if isinstance(entry, dict):
            lines.append(f"{head}\n{to_yaml(entry, indent + 1)}")
        elif isinstance(entry, list) and entry and isinstance(entry[0], dict):
            lines.append(
                head
                + "\n"
                + "".join("  " * indent + f"- {json.dumps(item)}\n" for item in entry)
            )
        else:
            lines.append(f"{head} {json.dumps(entry)}\n")
    return "".join(lines)


EXPORTS: dict[str, Callable[[Operation, Path], list[Path]]] = {
    "mtx": _matrix_market,
    "smtx": _dlmc,
    "tns": _frostt,
    "timeloop": _timeloop,
}
