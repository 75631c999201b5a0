"""A network timed against other engines: each in a process of its own, in turn, in repeated rounds."""

from __future__ import annotations

import copy
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tersify.checks import check_threads
from tersify.modes import eval_mode
from tersify.runtime import peers
from tersify.runtime.inputs import check_runs

DEEPSPARSE_VARIABLE = "TERSIFY_DEEPSPARSE_PYTHON"


@dataclass(kw_only=True)
class BenchRow:
    """Times of one engine at one batch size, in milliseconds over all rounds; `missing` says why there are none."""

    peer: str
    batch: int
    threads: int
    times: list[float] = field(default_factory=list, repr=False)
    cpu_times: list[float] = field(default_factory=list, repr=False)  # of the whole process, a call's mean by round
    round_medians: list[float] = field(default_factory=list, repr=False)
    missing: str = ""

    @property
    def median_ms(self) -> float:
        """Of the rounds' medians: a round that a neighbour disturbed counts as one, however few its calls."""
        return statistics.median(self.round_medians)

    @property
    def cpu_ms(self) -> float:
        return statistics.median(self.cpu_times)

    @property
    def best_ms(self) -> float:
        return min(self.times)

    @property
    def spread_ms(self) -> float:
        """The distance of the quartiles."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4)
        return high - low


def speedup(ours: BenchRow, theirs: BenchRow) -> float:
    """How many times faster ours is: the median over the rounds, in each of which both were timed."""
    pairs = zip(ours.round_medians, theirs.round_medians, strict=True)
    return statistics.median(other / own for own, other in pairs)


class _Worker:
    """A peer's process. It is stopped while others are timed: idle engines may spin for work."""

    def __init__(self, peer: str, folder: Path, threads: int) -> None:
        python = os.environ.get(DEEPSPARSE_VARIABLE, sys.executable) if peer == "deepsparse" else sys.executable
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "NM_DISABLE_ANALYTICS": "True"}
        # oneDNN's AMX kernels die where a virtual machine hides CPUID leaf 0x1D.
        env.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
        env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p) if python == sys.executable else ""
        self._log = open(folder / f"{peer}.log", "w")  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            [python, peers.__file__, peer, str(folder), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if process.poll() is not None:
            return {"error": f"its process ended with {process.returncode}"}
        process.send_signal(signal.SIGCONT)
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": f"its process ended with {process.wait()}"}
        process.send_signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()


def bench(
    model: nn.Module,
    example: Tensor,
    *,
    peers: Sequence[str] = ("torch", "onnxruntime", "tersify"),
    batches: Sequence[int] = (1, 8, 64),
    threads: int = 2,
    rounds: int = 5,
    seconds: float = 0.3,
    errors: dict[str, float] | None = None,
) -> list[BenchRow]:
    """Time `model` in every peer. `example` holds images for calibration and for the errors.

    `errors` is filled with each peer's largest deviation from the float64 result, relative to that result's
    largest value. A peer that is not installed gives rows whose `missing` says so.
    """
    check_threads(threads)
    with eval_mode(model):
        check_runs(model, (example[:1],))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_models(model, example, folder, wanted=peers)
        workers = {peer: _Worker(peer, folder, threads) for peer in peers}
        try:
            rows = {(p, b): BenchRow(peer=p, batch=b, threads=threads) for p in peers for b in batches}
            if errors is not None:
                _measure_errors(model, example, folder, workers, batches, errors)
            for _ in range(rounds):
                for batch in batches:
                    for peer, worker in workers.items():
                        row = rows[peer, batch]
                        if row.missing:
                            continue
                        answer = worker.ask(do="time", batch=batch, seconds=seconds)
                        if "ms" in answer:
                            row.round_medians.append(statistics.median(answer["ms"]))
                            row.cpu_times.append(answer["cpu_ms"])
                        row.times.extend(answer.get("ms", ()))
                        row.missing = answer.get("error", "")
            return list(rows.values())
        finally:
            for worker in workers.values():
                worker.close()


def _measure_errors(
    model: nn.Module,
    example: Tensor,
    folder: Path,
    workers: dict[str, _Worker],
    batches: Sequence[int],
    errors: dict[str, float],
) -> None:
    exact = _exact(model, example)
    # In batches of a size that will be timed: every further one would be built for nothing.
    batch = max((b for b in batches if len(example) % b == 0), default=len(example))
    for peer, worker in workers.items():
        if "error" not in worker.ask(do="outputs", batch=batch):
            given = np.load(folder / f"{peer}.npy").astype(np.float64)
            errors[peer] = float(np.abs(given - exact).max() / np.abs(exact).max())


def _exact(model: nn.Module, example: Tensor) -> Any:
    with torch.no_grad():
        exact = example.double() if example.is_floating_point() else example  # the numbers of words stay
        return copy.deepcopy(model).double()(exact).numpy()


def _write_models(model: nn.Module, example: Tensor, folder: Path, *, wanted: Sequence[str]) -> None:
    """The same network for every engine: model.pt2, model.onnx, its 8- and 4-bit forms, and inputs.npy."""
    np.save(folder / "inputs.npy", example.numpy())
    shown = torch.cat([example, example])[: max(2, len(example))]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        dynamic = ({0: torch.export.Dim("batch", min=1)},)
        torch.export.save(torch.export.export(model, (shown,), dynamic_shapes=dynamic), folder / "model.pt2")
        try:
            import onnx  # noqa: F401  (the exporter looks for it at its end)

            torch.onnx.export(
                model,
                (shown,),
                folder / "model.onnx",
                dynamo=False,
                opset_version=13,
                input_names=["x"],
                output_names=["y"],
                dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
            )
            if "onnxruntime-int8" in wanted:
                _quantize_onnx(example, folder)
            if "onnxruntime-int4" in wanted:
                _quantize_onnx_4bit(folder)
        except (ImportError, torch.onnx.OnnxExporterError) as error:  # packages or operators that ONNX lacks
            why = str(error).strip().partition("\n")[0]
            (folder / peers.NO_ONNX).write_text(f"the network cannot be written as ONNX ({why})", encoding="utf-8")


def _quantize_onnx(example: Tensor, folder: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Images(CalibrationDataReader):
        def __init__(self) -> None:
            self._rest = iter(example.numpy())

        def get_next(self) -> Any:
            image = next(self._rest, None)
            return None if image is None else {"x": image[None]}

    # What ONNX Runtime advises before quantizing: norms folded, shapes inferred.
    quant_pre_process(folder / "model.onnx", folder / "prepared.onnx")
    quantize_static(
        folder / "prepared.onnx",
        folder / "model-int8.onnx",
        Images(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )


def _quantize_onnx_4bit(folder: Path) -> None:
    """Matrix products with weights in blocks of 4 bits, the smallest that ONNX Runtime has."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    # The quantizer looks for MatMul; the exporter writes Gemm.
    graph = onnx.load(folder / "model.onnx")
    for node in graph.graph.node:
        if node.op_type == "Gemm" and len(node.input) == 2:
            weight = next(i for i in graph.graph.initializer if i.name == node.input[1])
            dense = onnx.numpy_helper.to_array(weight).T.copy()
            weight.CopyFrom(onnx.numpy_helper.from_array(dense, weight.name))
            node.op_type = "MatMul"
            del node.attribute[:]
    quantizer = MatMulNBitsQuantizer(graph, block_size=32, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(folder / "model-int4.onnx"))
