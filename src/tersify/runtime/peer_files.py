"""One network in the forms that other engines read: model.pt2, model.onnx and its
few-bit forms, inputs.npy.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tersify.exporting import exported, told_by
from tersify.runtime import peers

# Weights that share a scale, by bits: the most for which ONNX Runtime has kernels with
# int8 activations.
BLOCKS = {2: 128, 4: 256}


def write_models(
    model: nn.Module, example: Tensor, folder: Path, *, wanted: Sequence[str]
) -> None:
    """For every peer that is wanted; where ONNX cannot hold the network a file says
    why.
    """
    np.save(folder / "inputs.npy", example.numpy())
    # torch.export takes a batch of 1 for a constant size.
    shown = torch.cat([example, example])[: max(2, len(example))]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        dynamic = ({0: torch.export.Dim("batch", min=1)},)
        try:
            program = exported(model, (shown,), dynamic_shapes=dynamic)
        except Exception as error:  # torch.export raises many kinds
            raise ValueError(
                f"engines are handed the network by torch.export, which does not follow {type(model).__name__} for any "
                f"batch ({told_by(error)}); a forward without branches on values can be timed"
            ) from error
        torch.export.save(program, folder / "model.pt2")
        if peers.LLAMA in wanted:
            np.savez(
                folder / peers.MATRICES,
                *(weight.numpy() for weight in model.parameters() if weight.ndim == 2),
            )
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
                _quantize_8bit(example, folder)
            for bits in BLOCKS:
                if f"onnxruntime-int{bits}" in wanted:
                    _quantize_products(folder, bits)
        except Exception as error:
            # packages or operators that ONNX lacks, or what a quantizer cannot do
            (folder / peers.NO_ONNX).write_text(
                f"the network cannot be written as ONNX ({told_by(error)})",
                encoding="utf-8",
            )


def _quantize_8bit(example: Tensor, folder: Path) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
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


def _quantize_products(folder: Path, bits: int) -> None:
    """Matrix products without a bias as ONNX Runtime's MatMulNBits, activations rounded
    to int8 inside.
    """
    import onnx

    graph = onnx.load(folder / "model.onnx")
    weights = {tensor.name: tensor for tensor in graph.graph.initializer}
    for node in graph.graph.node:
        if (
            node.op_type not in ("Gemm", "MatMul")
            or len(node.input) != 2
            or node.input[1] not in weights
        ):
            continue
        dense = onnx.numpy_helper.to_array(weights[node.input[1]])
        # the exporter writes Gemm with the weight transposed
        by_output = dense if node.op_type == "Gemm" else dense.T
        codes, scales = few_bits(by_output, bits)
        arrays = {f"{node.input[1]}_codes": codes, f"{node.input[1]}_scales": scales}
        graph.graph.initializer.extend(
            onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()
        )
        graph.graph.initializer.remove(weights.pop(node.input[1]))
        sizes = {"N": by_output.shape[0], "K": by_output.shape[1]}
        settings = {
            "bits": bits,
            "block_size": BLOCKS[bits],
            "accuracy_level": 4,
            **sizes,
        }
        made = onnx.helper.make_node(
            "MatMulNBits",
            [node.input[0], *arrays],
            list(node.output),
            domain="com.microsoft",
            **settings,
        )
        node.CopyFrom(made)
    graph.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(graph, folder / f"model-int{bits}.onnx")


def few_bits(weight_OI: Any, bits: int) -> tuple[Any, Any]:
    """Packed codes (O, blocks, bytes) and scales (O · blocks) for the levels −L … +L, L
    = 2^(bits−1) − 1.

    The level −L−1 that the code has besides is left out: with it one sign of a ternary
    weight would be rounded.
    """
    (outputs, inputs), size = weight_OI.shape, BLOCKS[bits]
    blocks = -(-inputs // size)
    padded = np.zeros((outputs, blocks * size), np.float32)
    padded[:, :inputs] = weight_OI
    each = padded.reshape(outputs, blocks, size)
    # Each block's largest weight becomes the level ±most.
    most = 2 ** (bits - 1) - 1
    scales = np.abs(each).max(2) / most
    steps = np.rint(each / np.where(scales > 0, scales, 1)[..., None]).astype(np.int8)
    # the code of zero that ONNX Runtime takes where none is given
    codes = (steps + 2 ** (bits - 1)).astype(np.uint8)
    grouped = codes.reshape(outputs, blocks, -1, 8 // bits)
    # The first code lies in the lowest bits of a byte.
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (grouped << shifts).sum(3).astype(np.uint8), scales.astype(
        np.float32
    ).reshape(-1)
