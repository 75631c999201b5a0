"""The folder of a C export: source, header, golden vectors, a program for the host and
a Makefile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tersify.export.c.c_source import header, source
from tersify.export.c.host_programs import OWN_FILES, golden_header, host_programs
from tersify.export.c.program_steps import steps_of
from tersify.runtime.portable import Port, Program, Replay
from tersify.runtime.portable.program import sizes_of
from tersify.runtime.portable.sizes import Sizes
from tersify.tensor import CompressedTensor


def export_c(
    program: Program,
    tensors: Mapping[str, CompressedTensor | Tensor],
    out: Path,
    *,
    name: str = "network",
    vectors: int = 8,
) -> dict[str, int]:
    """Write the folder; returns how many steps there are, the bytes of the weights with
    their constants, and those of the memory that the source takes.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,30}", name):
        raise ValueError(f"a name in C has small letters, digits and _, got {name!r}")
    if name in OWN_FILES:
        raise ValueError(
            f"{name}.c is a file of the folder itself; give the network another name"
        )
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give another folder")
    steps = steps_of(program, tensors)
    inputs = _golden_inputs(program, [buffer.rows for buffer in steps.inputs], vectors)
    replay = Replay(program, tensors)
    made = [replay.run([x[i] for x in inputs]) for i in range(vectors)]
    outputs = list(map(torch.stack, zip(*made, strict=True)))
    text, memory = source(name, steps)
    files = {
        f"{name}.c": text,
        f"{name}.h": header(name, steps, memory),
        "golden.h": golden_header(inputs, outputs),
        **host_programs(
            name, steps, same_bits=program.precision == "int8" and steps.is_exact
        ),
    }
    out.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (out / file).write_text(content)
    held = sum(
        step.weights.size_bytes for step in steps.steps if step.weights is not None
    )
    return {
        "arena_bytes": memory.arena,
        "ram_bytes": memory.total,
        "weight_bytes": held,
        "steps": len(steps.steps),
    }


def _golden_inputs(program: Program, rows: list[int], vectors: int) -> list[Tensor]:
    """One for each port, its vectors along the first axis."""
    generator = torch.Generator().manual_seed(0)

    def random(port: Port, most: int) -> Tensor:
        shape = (vectors, *sizes_of(port, Sizes(1, 1)))
        if port.dtype == "int64":
            return torch.randint(0, max(most, 1), shape, generator=generator)
        return torch.randn(shape, generator=generator)

    return [random(*both) for both in zip(program.inputs, rows, strict=True)]
