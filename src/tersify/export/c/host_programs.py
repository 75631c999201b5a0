"""The programs that stand beside a C source: golden vectors, and one that runs on a host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from tersify.export.c.c_steps import Steps

OWN_FILES = ("golden", "stream")
_SAME_BITS, _ALMOST = "apart[o] == 0.0f", "apart[o] <= 1e-5f * most[o]"
_GOLDEN = """/* The golden vectors: what the runtime of Tersify made of these inputs. */
#include "NAME.h"
#include "golden.h"
#include <stdio.h>

static float apart[OUTPUTS], most[OUTPUTS];

static void compare(int o, const float *made, const float *golden, int count) {
  for (int k = 0; k < count; ++k) {
    float wanted = golden[k], gap = made[k] - wanted;
    if (gap < 0) gap = -gap;
    if (wanted < 0) wanted = -wanted;
    if (gap > apart[o] || gap != gap) apart[o] = gap;
    if (wanted > most[o]) most[o] = wanted;
  }
}

int main(void) {
  MEMORY
  int failed = 0;
  for (int i = 0; i < GOLDEN; ++i) {
    NAME_run(GIVEN);
    COMPARED
  }
  for (int o = 0; o < OUTPUTS; ++o) {
    printf("%d golden vectors, %g apart of %g\\n", GOLDEN, (double)apart[o], (double)most[o]);
    if (!(VERDICT)) failed = 1;
  }
  return failed;
}
"""
_STREAM = """/* For a host: 32-bit numbers from stdin, inputs one behind the other, and the outputs to stdout. */
#include "NAME.h"
#include <stdio.h>

int main(void) {
  MEMORY
  while (READ) {
    NAME_run(GIVEN);
    if (!(WRITTEN)) return 1;
  }
  return 0;
}
"""
_MAKEFILE = """CC ?= cc
CFLAGS ?= -O2
CFLAGS += -std=c99 -Wall -Wextra -ffp-contract=off

test: golden
\t./golden
golden: golden.c golden.h NAME.c NAME.h
\t$(CC) $(CFLAGS) golden.c NAME.c -o $@
stream: stream.c NAME.c NAME.h
\t$(CC) $(CFLAGS) stream.c NAME.c -o $@
# What it takes of a microcontroller: text is flash, bss is RAM.
cortex-m4: NAME.c NAME.h
\tarm-none-eabi-gcc -O2 -std=c99 -ffp-contract=off -mcpu=cortex-m4 -mthumb -c NAME.c -o NAME.o
\tarm-none-eabi-size NAME.o
"""


def host_programs(name: str, steps: Steps, *, same_bits: bool) -> dict[str, str]:
    """The files by their names. `same_bits`: golden vectors must be met exactly."""
    inputs, outputs = range(len(steps.inputs)), range(len(steps.outputs))
    made = [f"output{o}" for o in outputs]
    kinds = ["int32_t" if buffer.ids else "float" for buffer in steps.inputs]
    own = [
        f"static {kinds[i]} input{i}[{b.count}];" for i, b in enumerate(steps.inputs)
    ]
    out = [f"static float output{o}[{b.count}];" for o, b in enumerate(steps.outputs)]
    compared = [
        f"compare({o}, output{o}, golden_output{o}[i], {b.count});"
        for o, b in enumerate(steps.outputs)
    ]
    golden = {
        "MEMORY": "\n  ".join(out),
        "GIVEN": ", ".join([*(f"golden_input{i}[i]" for i in inputs), *made]),
        "COMPARED": "\n    ".join(compared),
        "VERDICT": _SAME_BITS if same_bits else _ALMOST,
        "OUTPUTS": str(len(outputs)),
    }
    stream = {
        "MEMORY": "\n  ".join([*own, *out]),
        "GIVEN": ", ".join([*(f"input{i}" for i in inputs), *made]),
        "READ": _each("fread", [f"input{i}" for i in inputs], "stdin"),
        "WRITTEN": _each("fwrite", made, "stdout"),
    }
    texts = {"golden.c": (_GOLDEN, golden), "stream.c": (_STREAM, stream)}
    return {
        "Makefile": _MAKEFILE.replace("NAME", name),
        **{
            file: _filled(text, {**more, "NAME": name})
            for file, (text, more) in texts.items()
        },
    }


def golden_header(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """Of each the first axis is that of the vectors."""
    lines = [f"#define GOLDEN {len(inputs[0])}"]
    for what, given in (("input", inputs), ("output", outputs)):
        for number, numbers in enumerate(given):
            rows = numbers.reshape(len(numbers), -1).numpy()
            floats = rows.dtype == np.float32
            kind, form = ("float", ".9g") if floats else ("int32_t", "d")
            body = ",\n".join(
                "{" + ",".join(f"{n:{form}}" for n in row) + "}" for row in rows
            )
            lines.append(
                f"static const {kind} golden_{what}{number}[GOLDEN][{rows.shape[1]}] = {{\n{body}}};"
            )
    return "\n".join(lines) + "\n"


def _each(call: str, names: list[str], file: str) -> str:
    return " && ".join(f"{call}({x}, sizeof {x}, 1, {file}) == 1" for x in names)


def _filled(text: str, words: dict[str, str]) -> str:
    for word, what in words.items():
        text = text.replace(word, what)
    return text
