"""Tables about layers and a decoding step on a GPU."""

from __future__ import annotations

from tables import read

LAYERS = {
    "4096x4096_batch1": "4096×4096",
    "14336x4096_batch1": "14336×4096",
    "14336x4096_batch16": "the same, 16 vectors",
}
PEERS = {
    "cublas_bf16": "cuBLAS, bf16",
    "torch_int4": "torch's int4 product",
    "gemlite_A16W158": "gemlite, ternary, 16-bit activations",
    "gemlite_A8W158": "gemlite, ternary, 8-bit activations",
    "gemlite_A16W4": "gemlite, 4 bits",
}
OURS = {
    "ternary_fp16": "ternary, fp16 activations",
    "ternary_int8_inside": "ternary, int8, rounded in the product",
    "ternary_int8": "ternary, int8 vectors given",
    "table4_fp16": "4-bit table, fp16 activations",
    "sparse_fp16": "90 % zeros as lists, fp16 activations",
    "sparse_int8_inside": "90 % zeros as lists, int8, rounded in the product",
}


def layers() -> str:
    """Microseconds of one layer, and how many times as fast as cuBLAS it is."""
    figures = read("gpu-linear")["figures"]
    lines = [
        "| | " + " | ".join(LAYERS.values()) + " |",
        "|---|" + "---|" * len(LAYERS),
    ]
    for key, name in (PEERS | OURS).items():
        cells = []
        for layer in LAYERS:
            # With several vectors the rounding is a kernel of its own.
            found = key.replace("inside", "rounded") if layer.endswith("16") else key
            time = figures.get(f"{found}_{layer}_us")
            times = figures.get(f"{found}_{layer}_over_cublas_bf16")
            told = "–" if time is None else f"{time:.1f}"
            cells.append(told if times is None else f"**{told}** ({times:.1f} times)")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def decoder() -> str:
    figures = read("gpu-decoder")["figures"]
    return (
        f"A decoding step of 30 blocks takes {figures['ours_us']:.0f} µs with ternary weights and int8 activations: "
        f"**{figures['times_as_fast_as_bf16']:.1f} times** as fast as bf16 in a CUDA graph "
        f"({figures['bf16_us']:.0f} µs), "
        f"{figures['times_as_fast_as_bf16_compiled']:.1f} times as fast as bf16 by `torch.compile` "
        f"({figures['bf16_compiled_us']:.0f} µs)."
    )


TABLES = {"gpu-layers": layers, "gpu-decoder": decoder}
