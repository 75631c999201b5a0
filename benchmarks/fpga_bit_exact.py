"""One network in integers four ways, bit for bit: the integer simulation, torch's
int64, ONNX Runtime, Icarus Verilog.

Every output of every layer is compared, for random 8-bit inputs over their whole range;
Icarus runs both variants of the exported circuit. Needs Icarus Verilog, onnx and
onnxruntime.

usage: python benchmarks/fpga_bit_exact.py [--model FILE.terse] [--vectors 1000] [--lanes 16] [--jobs 1] [--quick]
       [--json FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import report  # first: it sets what must stand before torch is imported

import numpy as np  # isort: skip
import onnxruntime  # isort: skip
import torch  # isort: skip

from tersify import codec
from tersify.export.fpga import export_fpga
from tersify.export.onnx_integer import export_integer_onnx
from tersify.runtime.fixed import FixedLayer, FixedNetwork, Ints, fixed_network
from tersify.tensor import CompressedTensor

MODEL = Path(__file__).parent.parent / "examples" / "speech-mask.terse"
VARIANTS = {"widen_weight": 0, "shift_product": 1}


def dense(tensor: CompressedTensor | torch.Tensor) -> torch.Tensor:
    return (
        tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor
    ).double()


def in_torch(
    weight: torch.Tensor, bias: torch.Tensor, layer: FixedLayer, x: torch.Tensor
) -> torch.Tensor:
    """The layer from its real weights, in int64: no codes, no table, no shift."""
    steps = (weight / layer.table.format.fine_step).round().long()
    start = (
        bias * 2.0**layer.bias_format.fraction + 0.5
    ).floor().long() * 2**layer.bias_shift
    sums = x @ steps.T + start
    if layer.relu:
        sums = sums.clamp(min=0)
    half = 2**layer.output_shift // 2
    return ((sums + half) >> layer.output_shift).clamp(
        layer.output.lowest, layer.output.highest
    )


def in_onnx_runtime(name: str, layer: FixedLayer, x: Ints, folder: Path) -> Ints:
    path = folder / f"{name}.onnx"
    export_integer_onnx(FixedNetwork({name: layer}), path)
    session = onnxruntime.InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )
    found: Ints = session.run(None, {"x": x.astype(np.int8)})[0].astype(np.int64)
    return found


def in_icarus(folder: Path, variant: str, verdict: str) -> bool:
    """Whether the circuit gave every golden output; its progress is printed."""
    subprocess.run(["make", "-s", f"{variant}.out"], cwd=folder, check=False)
    told = folder / f"{variant}.out"
    return told.is_file() and verdict in told.read_text().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--vectors", type=int, default=1000)
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument(
        "--jobs", type=int, default=1, help="2 simulates both variants at once"
    )
    parser.add_argument("--quick", action="store_true", help="ten vectors")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = codec.open(args.model)
    network = fixed_network(model)
    vectors = 10 if args.quick else args.vectors
    figures: dict[str, float] = {"vectors": vectors, "lanes": args.lanes}
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        values = network.random_inputs(vectors)
        for name, layer in network.layers.items():
            simulated = layer(values)
            weight, bias = dense(model[f"{name}.weight"]), dense(model[f"{name}.bias"])
            found = {
                "torch_int64": in_torch(
                    weight, bias, layer, torch.from_numpy(values)
                ).numpy(),
                "onnx_runtime": in_onnx_runtime(name, layer, values, folder),
            }
            figures |= {
                f"{name}.outputs": simulated.size,
                f"{name}.distinct_outputs": len(np.unique(simulated)),
            }
            for way, got in found.items():
                different = int((got != simulated).sum())
                figures[f"{name}.{way}.different"] = different
                wrong += different
                print(
                    f"{name}: {way}: {simulated.size:,} outputs, {different} different",
                    flush=True,
                )
            values = simulated
        export_fpga(network, folder / "fpga", vectors=vectors, lanes=args.lanes)

        def simulate(variant: str) -> None:
            nonlocal wrong
            start = time.perf_counter()
            verdict = f"PASS: {len(network.layers)} layers, {vectors} vectors, shift product {VARIANTS[variant]}"
            passed = in_icarus(folder / "fpga", variant, verdict)
            seconds = time.perf_counter() - start
            figures.update(
                {
                    f"icarus.{variant}.passed": int(passed),
                    f"icarus.{variant}.seconds": seconds,
                }
            )
            wrong += not passed
            print(
                f"Icarus, {variant}: {'all outputs equal' if passed else 'DIFFERENT'}, {seconds:.0f} s",
                flush=True,
            )

        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(simulate, VARIANTS))
    icarus = subprocess.run(
        ["iverilog", "-V"], capture_output=True, text=True
    ).stdout.split(" (")[0]
    versions = {
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "icarus": icarus,
    }
    report("fpga_bit_exact", figures, json_path=args.json, versions=versions)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
