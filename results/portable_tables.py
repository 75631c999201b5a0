"""Tables of what runs without Python: start, the same numbers everywhere, C, browsers."""

from __future__ import annotations

from tables import read

PLACES = {
    "x86_portable": "x86-64, SSE2",
    "x86_avx2": "x86-64, AVX2",
    "x86_avx512": "x86-64, AVX-512",
    "x86_avx512vnni": "x86-64, AVX-512 with VNNI",
    "x86_amx": "x86-64, AMX",
    "wasm": "WebAssembly, 128-bit vectors",
    "aarch64": "aarch64 under qemu",
    "armhf": "armhf under qemu",
    "riscv64": "riscv64 under qemu",
}
CORES = {
    "cortex_m0": "Cortex-M0",
    "cortex_m4": "Cortex-M4",
    "cortex_m33": "Cortex-M33",
}


def start() -> str:
    figures = read("without-python")["figures"]
    head = [
        "activations",
        "file, bytes",
        "first result, ms",
        "of CPU, ms",
        "resident, MB",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for precision in ("fp32", "int8"):
        wall = figures.get(f"start_{precision}_ms")
        resident = figures[f"start_{precision}_resident_bytes"] / 1e6
        cells = [
            precision,
            f"{figures[f'{precision}_file_bytes']:,.0f}",
            "–" if wall is None else f"{wall:.1f}",
            f"{figures[f'start_{precision}_cpu_ms']:.1f}",
            f"{resident:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [*lines, "", f"The program has {figures['binary_bytes']:,.0f} bytes."]
    )


def answers() -> str:
    """How far every machine is from the Python runtime, of the largest output."""
    figures = read("without-python")["figures"]
    lines = ["| machine | images | fp32, apart | int8 |", "|---|---|---|---|"]
    for key, name in PLACES.items():
        if f"{key}_fp32_apart" not in figures:
            continue
        counts = {figures[f"{key}_{p}_images"] for p in ("fp32", "int8")}
        told = " / ".join(f"{count:,.0f}" for count in sorted(counts))
        bits = "the same bits" if figures[f"{key}_int8_same_bits"] else "other bits"
        lines.append(
            f"| {name} | {told} | {figures[f'{key}_fp32_apart']:.1e} | {bits} |"
        )
    return "\n".join(lines)


def c_source() -> str:
    figures = read("without-python")["figures"]
    if "c_accuracy" not in figures:
        return "Not measured yet."
    bits = "bit for bit" if figures["c_same_bits"] else "not bit for bit"
    lines = [
        f"On {figures['c_images']:,.0f} test images the C source scores {figures['c_accuracy']:.2f} %, "
        f"the Python runtime in int8 {figures['python_int8_accuracy']:.2f} %; their outputs are the same {bits}.",
        "",
        "| core | flash, bytes | RAM, bytes | golden vectors under qemu |",
        "|---|---|---|---|",
    ]
    for key, name in CORES.items():
        same = "the same bits" if figures[f"{key}_same_bits"] else "apart"
        lines.append(
            f"| {name} | {figures[f'{key}_flash_bytes']:,.0f} | {figures[f'{key}_ram_bytes']:,.0f} | {same} |"
        )
    return "\n".join(lines)


def browser() -> str:
    figures = read("without-python")["figures"]
    if "onnxruntime_web_ms" not in figures:
        return "Not measured yet."
    lines = ["| | ms an image | times as fast | outputs apart |", "|---|---|---|---|"]
    lines.append(f"| ONNX Runtime Web | {figures['onnxruntime_web_ms']:.1f} | | |")
    for precision in ("fp32", "int8"):
        lines.append(
            f"| Tersify, {precision} | {figures[f'browser_{precision}_ms']:.2f} | "
            f"**{figures[f'browser_{precision}_times_as_fast']:.1f}** | {figures[f'browser_{precision}_apart']:.1e} |"
        )
    size = figures["package_gzipped_bytes"]
    return "\n".join(
        [*lines, "", f"The package takes {size:,.0f} bytes as gzip sends it."]
    )


# Key of the record, what the layer is, numbers of vectors.
LAYERS = (
    ("two_bit", "two-bit signs", (1, 2, 4, 16)),
    ("four_bit", "four-bit table", (1,)),
    ("picked", "picked signs, 95 % zeros", (1,)),
    ("bits", "bits with bits", (1,)),
    ("conv_two_bit", "two-bit signs, convolution", (1,)),
    ("conv_fp16_lists", "lists of signs in fp16, convolution, 95 % zeros", (1,)),
)


def counts() -> str:
    """Executed instructions of a product, never times."""
    figures = read("without-python")["figures"]
    names = {
        "portable": "NEON",
        "dotprod": "DotProd",
        "i8mm": "I8mm",
        "neonfp16": "fp16",
    }
    lines = [
        "| weights | vectors | " + " | ".join(names.values()) + " |",
        "|---|---|" + "---|" * len(names),
    ]
    for key, told, numbers in LAYERS:
        for vectors in numbers:
            found = [
                figures.get(f"{key}_{isa}_{vectors}_products_an_instruction")
                for isa in names
            ]
            if any(found):
                cells = ("" if value is None else f"{value:.2f}" for value in found)
                lines.append(f"| {told} | {vectors} | {' | '.join(cells)} |")
    return "\n".join(lines)


def hostile() -> str:
    figures = read("without-python")["figures"]
    if "hostile_plans" not in figures:
        return "Not run to its end yet."
    return (
        f"{figures['hostile_plans']:,.0f} files with hostile plans went through the C functions under "
        f"AddressSanitizer and UBSan: {figures['hostile_reports']:.0f} reports."
    )


TABLES = {
    "portable-start": start,
    "portable-answers": answers,
    "portable-c": c_source,
    "portable-browser": browser,
    "portable-counts": counts,
    "portable-hostile": hostile,
}
