"""`inspect`: what is in a `.terse` file, tensor by tensor, with the bytes that each one
takes on disk.
"""

from __future__ import annotations

import os
from typing import Any

from tersify.codec.members import CodeGroup, parts_of
from tersify.codec.reader import DEFAULT_MAX_DECODED_BYTES, TerseFile
from tersify.tensor import CompressedTensor, entropy_bits, sparsity_percent
from tersify.tensor.model import GRAPH


def inspect(
    path: str | os.PathLike[str], *, max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES
) -> dict[str, Any]:
    """Everything `tersify inspect` prints, as plain JSON.

    The bytes of a group are shared out to its tensors in proportion to their elements,
    so that the tensors' `bytes` and `overhead_bytes` (header and directory) add up to
    `file_bytes`.
    """
    file = TerseFile(path, max_decoded_bytes=max_decoded_bytes)
    packed = file.read()
    fractions = _fractions(file)
    tensors = []
    for entry in file.directory.entries:
        tensor = packed[entry.name]
        row: dict[str, Any] = {
            "name": entry.name,
            "shape": list(entry.shape),
            "weights": tensor.numel(),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "kind": "dense",
            "coder": file.coders(entry),
            "bytes": fractions[entry.name],
        }
        if isinstance(tensor, CompressedTensor):
            row["kind"] = "pruned" if tensor.codebook is None else "quantized"
            row["levels"] = tensor.levels
            row["sparsity"] = sparsity_percent([tensor])
            row["entropy_bits"] = entropy_bits([tensor])
            # Bits of a code and of a table's word, and by how many bits words near zero
            # are finer.
            row |= {
                key: tensor.format[key]
                for key in ("n", "m", "k")
                if key in tensor.format
            }
        tensors.append(row)
    return {
        "file_bytes": file.file_bytes,
        "overhead_bytes": file.file_bytes - sum(fractions.values()),
        "dense_bytes": packed.dense_bytes(),
        "weights": sum(row["weights"] for row in tensors),
        "sparsity": packed.sparsity_percent(),
        "entropy_bits": packed.entropy_bits(),
        "version": file.version,
        "tensors": tensors,
        "groups": _groups(file),
        "aliases": file.aliases,
        "recipe": file.recipe,
        "metadata": _short(file.metadata),
        "provenance": file.provenance,
    }


def _short(metadata: dict[str, Any]) -> dict[str, Any]:
    """Of a graph, how many operations it has; of a tokenizer, how long it is."""
    graph = metadata.get(GRAPH)
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if isinstance(nodes, list):
        metadata = metadata | {GRAPH: {"operations": len(nodes)}}
    about = metadata.get("language_model")
    if isinstance(about, dict):
        length = len(str(about.get("tokenizer")))
        short = about | {"tokenizer": f"{length:,} characters"}
        metadata = metadata | {"language_model": short}
    return metadata


def _groups(file: TerseFile) -> list[dict[str, Any]]:
    rows = []
    for index in file.contents.all_groups():
        group = file.contents.group(index)
        rows.append(
            {
                "name": f"g{index}",
                "coder": file.directory.groups[index].codec,
                "holds": f"codes of {group.levels} levels"
                if isinstance(group, CodeGroup)
                else group.dtype,
                "elements": group.elements,
                "bytes": file.group_bytes(index),
            }
        )
    return rows


def _fractions(file: TerseFile) -> dict[str, int]:
    """Bytes on disk per tensor. Within a group the parts are cut so that they sum to
    the group's size.
    """
    fractions = dict.fromkeys(file, 0)
    seen: dict[int, int] = {}  # per group: elements of the tensors so far
    for entry in file.directory.entries:
        for part in parts_of(entry):
            for index, begin, end in file.contents.spans(entry, part):
                whole = file.contents.group(index).decoded_bytes
                size = file.group_bytes(index)
                before = seen.get(index, 0)
                seen[index] = before + end - begin
                # Differences of rounded-down running totals: the parts add up to the
                # group's size exactly.
                fractions[entry.name] += (
                    size * seen[index] // whole - size * before // whole
                )
    return fractions
