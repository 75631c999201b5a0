"""The text of the C source: constants, weights, the kernels, and one function that runs
the steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

from tersify.export.c.arena import ALIGN, IN_PLACE, places
from tersify.export.c.c_steps import Buffer, Step, Steps
from tersify.export.c.layer_text import (
    TYPES,
    Tables,
    float_text,
    layer_text,
    plane_of,
    quant_text,
)

_ARENA = "static union { uint64_t aligned; uint8_t bytes[BYTES]; } arena;\n"
CONVERSIONS = ("to_bytes", "to_floats")
CONVOLUTIONS = frozenset({"conv_i8", "conv_f32", "conv_codes"})
# What a kernel needs besides itself; a compiler would warn of what nobody calls.
WEIGHTED = CONVOLUTIONS | {"linear_i8", "embedding"}
HELPERS = {
    "cursor": WEIGHTED,
    "begin_row": WEIGHTED,
    "next_weight": WEIGHTED,
    "clamped": CONVOLUTIONS | {"linear_i8", "to_bytes", "elementwise", "mean_f32"},
    "finished": CONVOLUTIONS | {"linear_i8", "elementwise", "mean_f32"},
    "rounded": {"conv_i8", "to_bytes", "linear_i8"},
    "inside": CONVOLUTIONS,
    "place": CONVOLUTIONS,
    "taps": CONVOLUTIONS,
    "sums": CONVOLUTIONS,
    "sum_of": {"conv_f32", "mean_f32"},
    "write_mean": {"conv_i8", "conv_f32", "mean_f32"},
}
KERNELS = {
    *CONVOLUTIONS,
    *CONVERSIONS,
    "max_f32",
    "elementwise",
    "mean_f32",
    "mean_windows",
    "linear_i8",
    "moved",
    "embedding",
}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Static memory of the source, in bytes: buffers, and what kernels keep beside."""

    arena: int
    sums: int
    steps: int

    @property
    def total(self) -> int:
        return self.arena + self.sums + self.steps


def header(name: str, steps: Steps, memory: Memory) -> str:
    guard, caps = f"{name.upper()}_H", name.upper()
    sizes = []
    for kind, buffers in (("INPUT", steps.inputs), ("OUTPUT", steps.outputs)):
        for i, buffer in enumerate(buffers):
            sizes.append(f"#define {caps}_{kind}{i} {buffer.count}")
            if buffer.ids:
                sizes.append(f"#define {caps}_{kind}{i}_ROWS {buffer.rows}")
    ids = any(buffer.ids for buffer in steps.inputs)
    says = "Floats in, floats out, one item"
    if ids:
        says = "Numbers of rows from 0 and floats in, floats out, one item"
    return "\n".join(
        [
            f"#ifndef {guard}",
            f"#define {guard}",
            *(["#include <stdint.h>"] if ids else []),
            "",
            f"/* {says}; not for two threads at once: its memory is static. */",
            *sizes,
            f"#define {caps}_ARENA_BYTES {memory.arena}",
            f"#define {caps}_RAM_BYTES {memory.total}",
            "",
            f"void {name}_run({_arguments(steps)});",
            "",
            "#endif",
            "",
        ]
    )


def source(name: str, steps: Steps) -> tuple[str, Memory]:
    """The C text, and the memory that it takes."""
    at, arena = places(steps)
    used = {step.kernel for step in steps.steps}
    sums = max((_plane(s) for s in steps.steps if s.kernel in CONVOLUTIONS), default=0)
    rounded = max(
        (s.reads[0].item_count for s in steps.steps if s.kernel == "linear_i8"),
        default=0,
    )
    memory = Memory(arena=-(-arena // ALIGN) * ALIGN, sums=4 * sums, steps=rounded)
    tables, layers, calls = Tables(), [], []
    for number, step in enumerate(steps.steps):
        if step.kernel in CONVERSIONS:
            quant = quant_text(step.writes.quant or step.reads[0].quant)
            layers.append(f"static const quant q{number} = {quant};")
        elif step.kernel not in ("joined", "moved"):
            text = layer_text(step, tables)
            layers.append(f"static const layer l{number} = {text};")
        calls += _Call(step, number, steps, at, tables).lines()
    kernels = resources.files(__package__).joinpath("kernels.c.in").read_text()
    parts = [
        f"/* Made by tersify; runs {len(steps.steps)} steps in {memory.total} bytes of static memory. */",
        f'#include "{name}.h"',
        "#include <stdint.h>",
        "#include <string.h>",
        "",
        f"#define SUMS {sums}",
        f"#define STEPS {rounded}",
        "",
        TYPES,
        *tables.lines,
        "",
        _needed(kernels, used),
        *layers,
        "",
        _ARENA.replace("BYTES", str(memory.arena)) if memory.arena else "",
        f"void {name}_run({_arguments(steps)}) {{",
        *calls,
        "}",
        "",
    ]
    return "\n".join(parts), memory


def _needed(kernels: str, used: set[str]) -> str:
    """Without what nobody calls."""
    kept = []
    for block in kernels.split("\n\n"):
        found = re.search(r"^static [^\n(]*?(\w+)\(|^} (\w+);", block, re.MULTILINE)
        name = (found.group(1) or found.group(2)) if found else ""
        wanted = HELPERS.get(name, used)
        if (name in KERNELS and name not in used) or not wanted & used:
            continue
        kept.append(block)
    return "\n\n".join(kept)


def _plane(step: Step) -> int:
    height, width = plane_of(step)
    return height * width


@dataclass(frozen=True)
class _Call:
    """The lines that run a step."""

    step: Step
    number: int
    steps: Steps
    at: dict[Buffer, int]
    tables: Tables

    def lines(self) -> list[str]:
        step = self.step
        reads = [self._pointer(buffer, const=True) for buffer in step.reads]
        target = self._pointer(step.writes, const=False)
        if step.kernel in CONVERSIONS:
            count = step.writes.count
            return [f"  {step.kernel}({reads[0]}, {target}, {count}, &q{self.number});"]
        if step.kernel == "embedding":
            ids = step.reads[0].count
            return [f"  embedding(&l{self.number}, {reads[0]}, {ids}, {target});"]
        items = step.writes.items
        if step.kernel == "joined":
            return self._joined(reads, target)
        each = [
            _item(pointer, buffer.item_count, items)
            for pointer, buffer in zip(reads, step.reads, strict=True)
        ]
        if step.kernel in IN_PLACE and len(each) < 2:
            each.append(self.tables.floats(step.constant))
        made = _item(target, step.writes.item_count, items)
        if step.kernel == "conv_i8" and step.means:
            made = f"(uint8_t *)(void *)({made})"
        loop = f"for (int32_t i = 0; i < {items}; ++i) " if items > 1 else ""
        if step.kernel == "moved":
            axes, count = self.tables.axes(step.axes), len(step.axes)
            fill = float_text(step.fill)
            return [
                f"  {loop}moved({axes}, {count}, {fill}, {each[0]}, {step.offset}, 1, {made});"
            ]
        return [f"  {loop}{step.kernel}(&l{self.number}, {', '.join(each)}, {made});"]

    def _joined(self, reads: list[str], target: str) -> list[str]:
        """Item by item, the parts one behind the other."""
        whole, lines = self.step.writes.item_count, []
        for item in range(self.step.writes.items):
            at = item * whole
            for pointer, buffer in zip(reads, self.step.reads, strict=True):
                count = buffer.item_count
                lines.append(
                    f"  memcpy({target} + {at}, {pointer} + {item * count}, {4 * count});"
                )
                at += count
        return lines

    def _pointer(self, buffer: Buffer, *, const: bool) -> str:
        memory = buffer.memory
        for word, ports in (
            ("output", self.steps.outputs),
            ("input", self.steps.inputs),
        ):
            for number, port in enumerate(ports):
                if port.memory is memory:
                    return f"{word}{number}"
        kind = "uint8_t" if buffer.quant is not None else "float"
        return f"({'const ' if const else ''}{kind} *)(void *)(arena.bytes + {self.at[memory]})"


def _item(pointer: str, count: int, items: int) -> str:
    return f"{pointer} + i * {count}" if items > 1 else pointer


def _arguments(steps: Steps) -> str:
    given = [
        f"const {'int32_t' if buffer.ids else 'float'} *input{i}"
        for i, buffer in enumerate(steps.inputs)
    ]
    return ", ".join(
        [*given, *(f"float *output{i}" for i in range(len(steps.outputs)))]
    )
