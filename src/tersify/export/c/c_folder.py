"""The folder of a C export: source, header, golden vectors, a program for the host and
a Makefile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tersify.export.c.c_source import header, source
from tersify.export.c.program_steps import steps_of
from tersify.runtime.portable import Program, Replay
from tersify.tensor import CompressedTensor

_TEST = """/* The golden vectors: what the runtime of Tersify made of these inputs. */
#include "NAME.h"
#include "golden.h"
#include <stdio.h>

int main(void) {
  static float output[NAME_CAPS_OUTPUT0];
  float most = 0.0f, apart = 0.0f;
  for (int i = 0; i < GOLDEN; ++i) {
    NAME_run(golden_inputs[i], output);
    for (int k = 0; k < NAME_CAPS_OUTPUT0; ++k) {
      float wanted = golden_outputs[i][k], gap = output[k] - wanted;
      if (gap < 0) gap = -gap;
      if (wanted < 0) wanted = -wanted;
      if (gap > apart || gap != gap) apart = gap;
      if (wanted > most) most = wanted;
    }
  }
  printf("%d golden vectors, %g apart of %g\\n", GOLDEN, (double)apart, (double)most);
  return VERDICT ? 0 : 1;
}
"""
OWN_FILES = ("golden", "stream")
SAME_BITS, ALMOST = "apart == 0.0f", "apart <= 1e-5f * most"
_STREAM = """/* For a host: 32-bit floats from stdin, the network's outputs to stdout. */
#include "NAME.h"
#include <stdio.h>

int main(void) {
  static float input[NAME_CAPS_INPUT0], output[NAME_CAPS_OUTPUT0];
  while (fread(input, sizeof input, 1, stdin) == 1) {
    NAME_run(input, output);
    if (fwrite(output, sizeof output, 1, stdout) != 1) return 1;
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


def export_c(
    program: Program,
    tensors: Mapping[str, CompressedTensor | Tensor],
    out: Path,
    *,
    name: str = "network",
    vectors: int = 8,
) -> dict[str, int]:
    """Write the folder; returns the bytes of the arena and of weights with constants."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,30}", name):
        raise ValueError(f"a name in C has small letters, digits and _, got {name!r}")
    if name in OWN_FILES:
        raise ValueError(
            f"{name}.c is a file of the folder itself; give the network another name"
        )
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give another folder")
    steps = steps_of(program, tensors)
    if (len(steps.inputs), len(steps.outputs)) != (1, 1) or program.inputs[
        0
    ].dtype != "float32":
        raise ValueError(
            "a C source has one input of floats and one output; the network stays with libtersify"
        )
    text, arena = source(name, steps)
    shape = [1 if size is None else size for size in program.inputs[0].shape]
    inputs = torch.randn(
        vectors, *shape[1:], generator=torch.Generator().manual_seed(0)
    )
    replay = Replay(program, tensors)
    outputs = torch.cat([replay.run([inputs[i : i + 1]])[0] for i in range(vectors)])
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.c").write_text(text)
    (out / f"{name}.h").write_text(header(name, steps, arena))
    (out / "golden.h").write_text(_golden(inputs, outputs))
    same = program.precision == "int8" and steps.is_exact
    for file, template in (
        ("golden.c", _TEST.replace("VERDICT", SAME_BITS if same else ALMOST)),
        ("stream.c", _STREAM),
        ("Makefile", _MAKEFILE),
    ):
        (out / file).write_text(
            template.replace("NAME_CAPS", name.upper()).replace("NAME", name)
        )
    held = sum(
        step.weights.size_bytes for step in steps.steps if step.weights is not None
    )
    return {"arena_bytes": arena, "weight_bytes": held, "steps": len(steps.steps)}


def _golden(inputs: Tensor, outputs: Tensor) -> str:
    lines = [f"#define GOLDEN {len(inputs)}"]
    for what, numbers in (("inputs", inputs), ("outputs", outputs)):
        rows = numbers.reshape(len(numbers), -1).numpy().astype(np.float32)
        body = ",\n".join("{" + ",".join(f"{n:.9g}" for n in row) + "}" for row in rows)
        lines.append(
            f"static const float golden_{what}[GOLDEN][{rows.shape[1]}] = {{\n{body}}};"
        )
    return "\n".join(lines) + "\n"
