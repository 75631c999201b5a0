"""One engine in one process, timed on request. Run as a script, so that a peer's own
environment needs no tersify.

usage: python peers.py PEER FOLDER THREADS; then lines of JSON on standard input:
{"do": "time", "batch": 8, "seconds": 1.0} → {"ms": [...], "cpu_ms": 3.1}; {"do":
"outputs", "batch": 8} → writes FOLDER/PEER.npy.
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
MATRICES = "matrices.npz"  # of linear layers in a row
LLAMA = "llama.cpp-tq2"
TQ2_0 = 35  # its number in ggml.h
# images → logits, both as the engine's own callers have them: arrays, or torch's
# tensors
Run = Callable[[Any], Any]
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
    """Weights of 8 bits, activations quantized as they come: what torch offers for
    linear layers in a row.
    """
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

        # a precision that this CPU lacks is missing, not replaced
        warnings.simplefilter("error", RuntimeWarning)
        module = _torch_module(folder, threads)
        example = torch.from_numpy(np.load(folder / "inputs.npy"))
        return tersify.runtime.compile(
            module, example, precision=precision, threads=threads
        )

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
        session = onnxruntime.InferenceSession(
            _written(folder, file), options, providers=["CPUExecutionProvider"]
        )
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0]

    return load


def _openvino(*, quantized: bool = False, precision: str = "f32") -> Loader:
    def load(folder: Path, batch: int, threads: int) -> Run:
        import openvino

        core = openvino.Core()
        model = core.read_model(_written(folder, "model.onnx"))
        inputs = np.load(folder / "inputs.npy")
        model.reshape([batch, *inputs.shape[1:]])
        if quantized:
            import nncf

            # Calibrated once, for one image: the quantizers do not depend on the batch
            # size.
            kept = folder / "model-int8.xml"
            if not kept.exists():
                model.reshape([1, *inputs.shape[1:]])
                calibrated = nncf.quantize(
                    model, nncf.Dataset([image[None] for image in inputs])
                )
                openvino.save_model(calibrated, kept, compress_to_fp16=False)
            model = core.read_model(kept)
            model.reshape([batch, *inputs.shape[1:]])
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        if precision:  # its own choice is bf16 where the CPU has it
            options["INFERENCE_PRECISION_HINT"] = precision
        compiled = core.compile_model(model, "CPU", options)
        return lambda x: compiled(x)[0]

    return load


def _deepsparse(folder: Path, batch: int, threads: int) -> Run:
    os.environ["NM_DISABLE_ANALYTICS"] = "True"
    import deepsparse

    engine = deepsparse.compile_model(
        str(_written(folder, "model.onnx")), batch_size=batch, num_cores=threads
    )
    return lambda x: engine.run([x])[0]


def _llama(folder: Path, batch: int, threads: int) -> Run:
    """Ternary matrices in a row as llama.cpp computes them: its type TQ2_0, activations
    rounded to int8 in blocks.
    """
    import ctypes

    import gguf
    import llama_cpp

    libraries = Path(llama_cpp.__file__).parent / "lib"
    base, cpu = (
        ctypes.CDLL(str(libraries / f"lib{name}.so"))
        for name in ("ggml-base", "ggml-cpu")
    )
    pointer, size = ctypes.c_void_p, ctypes.c_size_t

    # These mirror ggml_init_params and ggml_threadpool_params of ggml.h.
    class Settings(ctypes.Structure):
        _fields_ = [("bytes", size), ("memory", pointer), ("no_alloc", ctypes.c_bool)]

    class Pool(ctypes.Structure):
        _fields_ = [
            ("mask", ctypes.c_bool * 512),
            ("threads", ctypes.c_int),
            ("priority", ctypes.c_int),
            ("poll", ctypes.c_uint32),
            ("strict", ctypes.c_bool),
            ("paused", ctypes.c_bool),
        ]

    def function(library: Any, name: str, result: Any, *kinds: Any) -> Any:
        found = getattr(library, name)
        found.restype, found.argtypes = result, list(kinds)
        return found

    new_matrix = function(
        base,
        "ggml_new_tensor_2d",
        pointer,
        pointer,
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_int64,
    )
    product = function(base, "ggml_mul_mat", pointer, pointer, pointer, pointer)
    put = function(base, "ggml_backend_tensor_set", None, pointer, pointer, size, size)
    get = function(base, "ggml_backend_tensor_get", None, pointer, pointer, size, size)
    context = function(base, "ggml_init", pointer, Settings)(
        Settings(1 << 24, None, True)
    )
    backend = function(cpu, "ggml_backend_cpu_init", pointer)()
    function(cpu, "ggml_backend_cpu_set_n_threads", None, pointer, ctypes.c_int)(
        backend, threads
    )
    pool = Pool()  # made once: otherwise every call starts its threads anew
    function(base, "ggml_threadpool_params_init", None, pointer, ctypes.c_int)(
        ctypes.byref(pool), threads
    )
    made = function(cpu, "ggml_threadpool_new", pointer, pointer)(ctypes.byref(pool))
    function(cpu, "ggml_backend_cpu_set_threadpool", None, pointer, pointer)(
        backend, made
    )

    matrices = list(np.load(folder / MATRICES).values())
    given = last = new_matrix(context, 0, matrices[0].shape[1], batch)  # 0: fp32
    # `no_alloc`: tensors get their memory from the backend once the graph is known.
    stored = []
    for matrix in matrices:
        stored.append(new_matrix(context, TQ2_0, matrix.shape[1], matrix.shape[0]))
        last = product(context, stored[-1], last)
    graph = function(base, "ggml_new_graph", pointer, pointer)(context)
    function(base, "ggml_build_forward_expand", None, pointer, pointer)(graph, last)
    function(base, "ggml_backend_alloc_ctx_tensors", pointer, pointer, pointer)(
        context, backend
    )
    for tensor, matrix in zip(stored, matrices, strict=True):
        packed = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.TQ2_0)
        put(tensor, packed.ctypes.data, 0, packed.nbytes)
    compute = function(
        base, "ggml_backend_graph_compute", ctypes.c_int, pointer, pointer
    )
    answer = np.empty((batch, matrices[-1].shape[0]), np.float32)

    def run(x: Any) -> Any:
        put(given, x.ctypes.data, 0, x.nbytes)
        if compute(backend, graph):
            raise RuntimeError("ggml could not compute the graph")
        get(last, answer.ctypes.data, 0, answer.nbytes)
        return answer.copy()

    return run


LOADERS: dict[str, Loader] = {
    "torch": _torch_eager,
    "torch.compile": _torch_compile,
    "torch-int8": _torch_int8,
    "onnxruntime": _onnxruntime("model.onnx"),
    "onnxruntime-int8": _onnxruntime("model-int8.onnx"),
    "onnxruntime-int4": _onnxruntime("model-int4.onnx"),
    "onnxruntime-int2": _onnxruntime("model-int2.onnx"),
    "openvino": _openvino(),
    "openvino-default": _openvino(precision=""),
    "openvino-int8": _openvino(quantized=True),
    LLAMA: _llama,
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

    The kernel books the time of other threads once in a while, so CPU time only has a
    meaning over many calls.
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
    # Engines chatter on standard output; answers go to a copy of it that they do not
    # know.
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
                groups = [
                    _handed(peer, inputs[i : i + batch])
                    for i in range(0, len(inputs), batch)
                ]
                parts = [np.asarray(loaded[batch](images)) for images in groups]
                np.save(folder / f"{peer}.npy", np.concatenate(parts))
                answer: dict[str, Any] = {}
            else:
                answer = _times(
                    loaded[batch], _handed(peer, images), request["seconds"]
                )
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
