"""A C export on a Cortex-M4 under qemu: golden vectors compared on the board, the
verdict by semihosting.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

BOARD = """
#include "network.h"
#include "golden.h"
#include <stdint.h>
extern uint32_t top_of_stack, data_begin, data_end, data_stored, bss_begin, bss_end;

static void host(int operation, const void *given) {
  register int r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = given;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static int same(void) {
  static float output[NETWORK_OUTPUT0];
  float most = 0.0f, apart = 0.0f;
  for (int i = 0; i < GOLDEN; ++i) {
    network_run(golden_inputs[i], output);
    for (int k = 0; k < NETWORK_OUTPUT0; ++k) {
      float wanted = golden_outputs[i][k], gap = output[k] - wanted;
      gap = gap < 0 ? -gap : gap;
      wanted = wanted < 0 ? -wanted : wanted;
      apart = gap > apart ? gap : apart;
      most = wanted > most ? wanted : most;
    }
  }
  return apart <= 1e-5f * most;
}

void reset(void) {
  uint32_t *from = &data_stored;
  for (uint32_t *to = &data_begin; to < &data_end;) *to++ = *from++;
  for (uint32_t *to = &bss_begin; to < &bss_end;) *to++ = 0;
  host(0x04, same() ? "same\\n" : "apart\\n");
  host(0x18, (const void *)0x20026);
  for (;;) {}
}

__attribute__((section(".vectors"), used)) static const void *vectors[] = {&top_of_stack, (const void *)reset};
"""
LAYOUT = """
MEMORY { FLASH (rx) : ORIGIN = 0, LENGTH = 4M  RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 4M }
SECTIONS {
  .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) *(.ARM.*) . = ALIGN(4); } > FLASH
  data_stored = LOADADDR(.data);
  .data : { data_begin = .; *(.data*) . = ALIGN(4); data_end = .; } > RAM AT > FLASH
  .bss : { bss_begin = .; *(.bss*) *(COMMON) . = ALIGN(4); bss_end = .; } > RAM
  top_of_stack = ORIGIN(RAM) + LENGTH(RAM);
}
"""


def missing() -> str:
    """What is not installed."""
    programs = {
        "arm-none-eabi-gcc": "gcc-arm-none-eabi",
        "qemu-system-arm": "qemu-system-arm",
    }
    return ", ".join(
        package
        for program, package in programs.items()
        if shutil.which(program) is None
    )


def verdict(folder: Path) -> str:
    """What the board says of the export in the folder: "same" or "apart"."""
    (folder / "board.c").write_text(BOARD)
    (folder / "board.ld").write_text(LAYOUT)
    flags = "-O2 -std=gnu99 -ffp-contract=off -mcpu=cortex-m4 -mthumb -mfloat-abi=soft -nostartfiles -T board.ld"
    given = [
        "arm-none-eabi-gcc",
        *flags.split(),
        "board.c",
        "network.c",
        "-o",
        "board.elf",
    ]
    subprocess.run(given, cwd=folder, check=True)
    run = "qemu-system-arm -M mps2-an386 -nographic -semihosting-config enable=on,target=native -kernel board.elf"
    made = subprocess.run(
        run.split(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return (made.stdout + made.stderr).strip()
