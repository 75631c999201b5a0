"""A C export on boards with a Cortex-M under qemu: golden vectors compared there, the
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

static const char *verdict(void) {
  static float output[NETWORK_OUTPUT0];
  float most = 0.0f, apart = 0.0f;
  for (int i = 0; i < GOLDEN; ++i) {
    network_run(golden_input0[i], output);
    for (int k = 0; k < NETWORK_OUTPUT0; ++k) {
      float wanted = golden_output0[i][k], gap = output[k] - wanted;
      gap = gap < 0 ? -gap : gap;
      wanted = wanted < 0 ? -wanted : wanted;
      apart = gap > apart ? gap : apart;
      most = wanted > most ? wanted : most;
    }
  }
  return apart == 0.0f ? "same bits\\n" : apart <= 1e-5f * most ? "same\\n" : "apart\\n";
}

void reset(void) {
  uint32_t *from = &data_stored;
  for (uint32_t *to = &data_begin; to < &data_end;) *to++ = *from++;
  for (uint32_t *to = &bss_begin; to < &bss_end;) *to++ = 0;
  host(0x04, verdict());
  host(0x18, (const void *)0x20026);
  for (;;) {}
}

__attribute__((section(".vectors"), used)) static const void *vectors[] = {&top_of_stack, (const void *)reset};
"""
LAYOUT = """
MEMORY { FLASH (rx) : ORIGIN = FLASH_AT, LENGTH = 4M  RAM (rwx) : ORIGIN = RAM_AT, LENGTH = 4M }
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


# qemu's boards with a Cortex-M0 have less memory than a network takes: its code, which has
# no instruction that a Cortex-M3 lacks, runs there.
BOARDS = {
    "cortex-m0": ("mps2-an385", "0", "0x20000000"),
    "cortex-m4": ("mps2-an386", "0", "0x20000000"),
    "cortex-m33": ("mps2-an505", "0x10000000", "0x38000000"),
}


def compiled(folder: Path, core: str, *sources: str) -> None:
    flags = f"-O2 -std=gnu99 -ffp-contract=off -mcpu={core} -mthumb -mfloat-abi=soft"
    given = ["arm-none-eabi-gcc", *flags.split(), *sources]
    subprocess.run(given, cwd=folder, check=True)


def sizes(folder: Path, core: str) -> tuple[int, int]:
    """Bytes of flash and of RAM that the network takes, without a stack."""
    compiled(folder, core, "-c", "network.c", "-o", "network.o")
    told = subprocess.run(
        ["arm-none-eabi-size", "network.o"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    text, data, bss = map(int, told.stdout.splitlines()[1].split()[:3])
    return text + data, data + bss


def verdict(folder: Path, core: str = "cortex-m4") -> str:
    """What the board says of the export in the folder: "same bits", "same" (but for the
    last digits of floats) or "apart".
    """
    board, flash, ram = BOARDS[core]
    (folder / "board.c").write_text(BOARD)
    layout = LAYOUT.replace("FLASH_AT", flash).replace("RAM_AT", ram)
    (folder / "board.ld").write_text(layout)
    script = ("-nostartfiles", "-T", "board.ld", "-o", "board.elf")
    compiled(folder, core, "board.c", "network.c", *script)
    run = f"qemu-system-arm -M {board} -nographic -semihosting-config enable=on,target=native -kernel board.elf"
    made = subprocess.run(
        run.split(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return (made.stdout + made.stderr).strip()
