"""One engine in one process, timed on request. Run as a script, so that a peer's own environment needs no tersify.

usage: python peers.py PEER FOLDER THREADS; then lines of JSON on standard input:
{"do": "time", "batch": 8, "seconds": 1.0} → {"ms": [...], "cpu_ms": 3.1}; {"do": "outputs", "batch": 8} → writes
FOLDER/PEER.npy.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NO_ONNX = "no-onnx.txt"  # says why there is no model.onnx
Run = Callable[[Any], Any]  # images → logits, both as the engine's own callers have them: arrays, or torch's tensors
Loader = Callable[[Path, int, int], Run]  # folder, batch size, threads


def _torch_module(folder: Path, threads: int) -> Any:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch.export.load(folder / "model.pt2").module()


def _torch_eager(folder: Path, batch: int, threads: int) -> Run:
    return _torch_module(folder, threads)


def _torch_compile(folder: Path, batch: int, threads: int) -> Run:
    import torch
    import torch._inductor.config

    torch._inductor.config.freezing = True
    return torch.compile(_torch_module(folder, threads), dynamic=False)


def _torch_int8(folder: Path, batch: int, threads: int) -> Run:
    """Weights of 8 bits, activations quantized as they come: what torch offers for linear layers in a row."""
    import torch
    from torch.ao.nn.quantized import dynamic

    layers = []
    for weight in _torch_module(folder, threads).state_dict().values():
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight.data = weight
        layer.qconfig = torch.ao.quantization.default_dynamic_qconfig  # type: ignore[assignment]
        layers.append(dynamic.Linear.from_float(layer))
    return torch.nn.Sequential(*layers)


def _tersify(precision: str) -> Loader:
    def load(folder: Path, batch: int, threads: int) -> Run:
        import torch

        import tersify.runtime

        warnings.simplefilter("error", RuntimeWarning)  # a precision that this CPU lacks is missing, not replaced
        module = _torch_module(folder, threads)
        example = torch.from_numpy(np.load(folder / "inputs.npy"))
        return tersify.runtime.compile(module, example, precision=precision, threads=threads)

    return load


def _written(folder: Path, file: str) -> Path:
    """The ONNX file, or the reason why there is none."""
    if not (folder / file).exists():
        raise RuntimeError((folder / NO_ONNX).read_text(encoding="utf-8"))
    return folder / file


def _onnxruntime(file: str) -> Loader:
    def load(folder: Path, batch: int, threads: int) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(_written(folder, file), options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0]

    return load


def _openvino(quantized: bool) -> Loader:
    def load(folder: Path, batch: int, threads: int) -> Run:
        import openvino

        core = openvino.Core()
        model = core.read_model(_written(folder, "model.onnx"))
        inputs = np.load(folder / "inputs.npy")
        model.reshape([batch, *inputs.shape[1:]])
        if quantized:
            import nncf

            # Calibrated once, for one image: the quantizers do not depend on the batch size.
            kept = folder / "model-int8.xml"
            if not kept.exists():
                model.reshape([1, *inputs.shape[1:]])
                calibrated = nncf.quantize(model, nncf.Dataset([image[None] for image in inputs]))
                openvino.save_model(calibrated, kept, compress_to_fp16=False)
            model = core.read_model(kept)
            model.reshape([batch, *inputs.shape[1:]])
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(model, "CPU", options)
        return lambda x: compiled(x)[0]

    return load


def _deepsparse(folder: Path, batch: int, threads: int) -> Run:
    os.environ["NM_DISABLE_ANALYTICS"] = "True"
    import deepsparse

    engine = deepsparse.compile_model(str(_written(folder, "model.onnx")), batch_size=batch, num_cores=threads)
    return lambda x: engine.run([x])[0]


LOADERS: dict[str, Loader] = {
    "torch": _torch_eager,
    "torch.compile": _torch_compile,
    "torch-int8": _torch_int8,
    "onnxruntime": _onnxruntime("model.onnx"),
    "onnxruntime-int8": _onnxruntime("model-int8.onnx"),
    "onnxruntime-int4": _onnxruntime("model-int4.onnx"),
    "openvino": _openvino(False),
    "openvino-int8": _openvino(True),
    "deepsparse": _deepsparse,
    "tersify": _tersify("fp32"),
    "tersify-fp16": _tersify("fp16"),
    "tersify-int8": _tersify("int8"),
}


def _handed(peer: str, images: Any) -> Any:
    """As the engine takes them: nobody who calls a torch module begins with an array."""
    if not peer.startswith(("torch", "tersify")):
        return images
    import torch

    return torch.from_numpy(images)


def _times(run: Run, images: Any, seconds: float) -> dict[str, Any]:
    """Wall time of every call, and the CPU time of the whole process for one.

    The kernel books the time of other threads once in a while, so CPU time only has a meaning over many calls.
    """
    run(images)
    wall: list[float] = []
    end, start_cpu = time.perf_counter() + seconds, time.process_time()
    while len(wall) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        run(images)
        wall.append(1000 * (time.perf_counter() - start))
    return {"ms": wall, "cpu_ms": 1000 * (time.process_time() - start_cpu) / len(wall)}


def main() -> None:
    peer, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    inputs = np.load(folder / "inputs.npy")
    # Engines chatter on standard output; answers go to a copy of it that they do not know.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loaded: dict[int, Run] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            batch = request.get("batch", len(inputs))
            if batch not in loaded:
                loaded[batch] = LOADERS[peer](folder, batch, threads)
            images = np.ascontiguousarray(np.resize(inputs, (batch, *inputs.shape[1:])))
            if request["do"] == "outputs":
                groups = [_handed(peer, inputs[i : i + batch]) for i in range(0, len(inputs), batch)]
                parts = [np.asarray(loaded[batch](images)) for images in groups]
                np.save(folder / f"{peer}.npy", np.concatenate(parts))
                answer: dict[str, Any] = {}
            else:
                answer = _times(loaded[batch], _handed(peer, images), request["seconds"])
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
