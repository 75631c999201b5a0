"""The same network in several engines, each as a function of no arguments, on one
thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

Work = Callable[[], Any]


def write_onnx(model: Any, x: Any, path: Path) -> None:
    import torch

    torch.onnx.export(
        model, (x,), path, dynamo=False, opset_version=17, input_names=["x"]
    )


def quantized(plain: Path, small: Path, kind: str, shown: list[Any]) -> None:
    """Static with calibration, or dynamic: 8 bits as ONNX Runtime's documents advise
    for convolutions or products.
    """
    from onnxruntime import quantization

    if kind == "dynamic":
        quantization.quantize_dynamic(
            plain, small, weight_type=quantization.QuantType.QInt8
        )
        return
    prepared = small.with_name("prepared.onnx")
    quantization.shape_inference.quant_pre_process(plain, prepared)
    rest = iter([{"x": each} for each in shown])
    source = {"get_next": lambda self: next(rest, None)}
    reader = type("Shown", (quantization.CalibrationDataReader,), source)()
    quantization.quantize_static(prepared, small, reader, per_channel=True)


def onnx_session(
    model: Any, x: Any, *, int8: str = "", shown: list[Any] | None = None
) -> Work:
    import onnxruntime

    with tempfile.TemporaryDirectory() as name:
        plain, small = Path(name) / "plain.onnx", Path(name) / "small.onnx"
        write_onnx(model, x, plain)
        if int8:
            quantized(plain, small, int8, shown or [x.numpy()])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            small if int8 else plain, options, providers=["CPUExecutionProvider"]
        )
    feed = {"x": x.numpy()}
    return lambda: session.run(None, feed)


def openvino_model(model: Any, x: Any, *, precision: str = "") -> Work:
    """`precision` "" is what it chooses itself: bf16 where the CPU has it."""
    import openvino

    with tempfile.TemporaryDirectory() as name:
        write_onnx(model, x, Path(name) / "plain.onnx")
        core = openvino.Core()
        options = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
        if precision:
            options["INFERENCE_PRECISION_HINT"] = precision
        read = core.read_model(Path(name) / "plain.onnx")
        read.reshape(list(x.shape))
        compiled = core.compile_model(read, "CPU", options)
    feed = np.ascontiguousarray(x.numpy())
    return lambda: compiled(feed)[0]


def torch_compiled(model: Any, x: Any) -> Work:
    """With its weights frozen, as it is fastest for inference."""
    import torch
    import torch._inductor.config

    torch._inductor.config.freezing = True
    fast = torch.compile(model, dynamic=False)
    return lambda: fast(x)


def peers(
    model: Any, x: Any, *, int8: str, shown: list[Any], without: Collection[str] = ()
) -> tuple[dict[str, Work], dict[str, str]]:
    """The engines that take the network and, for the others, why not."""
    makers: dict[str, Callable[[], Work]] = {
        "torch": lambda: lambda: model(x),
        "torch.compile": lambda: torch_compiled(model, x),
        "onnxruntime": lambda: onnx_session(model, x),
        "onnxruntime-int8": lambda: onnx_session(model, x, int8=int8, shown=shown),
        "openvino": lambda: openvino_model(model, x, precision="f32"),
        "openvino-default": lambda: openvino_model(model, x),
    }
    works, missing = {}, {}
    for name, make in makers.items():
        if name in without:
            continue
        try:
            works[name] = make()
            works[name]()
        except Exception as error:
            # whatever another engine raises is a line of the table
            works.pop(name, None)
            missing[name] = (
                f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"
            )
    return works, missing
