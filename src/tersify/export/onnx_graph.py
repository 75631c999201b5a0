"""A compressed network as ONNX: compressed weights are codes → Gather(table), the rest
is as torch exports it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tersify.export.onnx_file import onnx_module, save_checked
from tersify.modes import eval_mode
from tersify.tensor import CompressedTensor

OPSET = 21  # the first with 4-bit tensors


def export_onnx(
    model: nn.Module,
    packed: Mapping[str, CompressedTensor | Tensor],
    example: Tensor,
    path: Path,
    *,
    dense: bool = False,
) -> dict[str, int]:
    """Write `model`, which must hold the weights of `packed`; returns how many weights
    are tables and how many dense.

    Codes of up to 16 levels are UINT4, others uint8. Pruned weights without a codebook
    stay dense. With `dense` all weights are plain floats, batch norms folded into
    them: for engines that would expand a table at every call.
    """
    onnx = onnx_module()
    traced = _trace(model, example, folded=dense)
    document = onnx.load_from_string(traced)
    graph = document.graph
    nodes: list[Any] = []
    kept, tables = [], 0
    for initializer in graph.initializer:
        tensor = None if dense else packed.get(initializer.name)
        if isinstance(tensor, CompressedTensor) and tensor.codebook is not None:
            constants, made = _lookup(onnx, initializer.name, tensor)
            kept += constants
            nodes += made
            tables += 1
        else:
            kept.append(initializer)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    # At the front, since a graph's nodes must stand before whoever reads their outputs.
    for node in reversed(nodes):
        graph.node.insert(0, node)
    del document.opset_import[:]
    document.opset_import.append(onnx.helper.make_opsetid("", OPSET))
    document.ir_version, document.producer_name = 10, "tersify"
    save_checked(document, path)
    return {
        "tables": tables,
        "dense": len(kept) - sum(1 for k in kept if k.name.startswith("tersify/")),
    }


def _trace(model: nn.Module, example: Tensor, *, folded: bool) -> bytes:
    """Torch's own export. Unless `folded` the weights keep their names and values: no
    folding, no fusing of batch norms into them.
    """
    modes = torch.onnx.TrainingMode
    buffer = io.BytesIO()
    try:
        with eval_mode(model), warnings.catch_warnings():
            # the trace-based exporter is the one that keeps names, and is deprecated
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                (example,),
                buffer,  # type: ignore[arg-type]
                dynamo=False,
                training=modes.EVAL if folded else modes.PRESERVE,
                do_constant_folding=folded,
                input_names=["x"],
                output_names=["y"],
                dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
            )
    except (RuntimeError, IndexError) as error:
        size = "×".join(map(str, example.shape))
        raise ValueError(
            f"{type(model).__name__} cannot be exported with an input of {size} ({str(error).partition(chr(10))[0]}); "
            "give the shape that it takes"
        ) from error
    return buffer.getvalue()


def _lookup(
    onnx: Any, name: str, tensor: CompressedTensor
) -> tuple[list[Any], list[Any]]:
    helper, from_array = onnx.helper, onnx.numpy_helper.from_array
    assert tensor.codebook is not None
    stem = f"tersify/{name}"
    per_row = tensor.axis is not None
    codes = tensor.codes.cpu().numpy()
    if per_row:
        assert tensor.axis is not None
        # GatherElements picks along axis 1 of a table with one row for each slice, so
        # codes become (slices, rest).
        codes = np.moveaxis(codes, tensor.axis, 0)
        rows_shape = codes.shape
        codes = codes.reshape(len(codes), -1)
    constants = [
        from_array(tensor.codebook.cpu().numpy(), f"{stem}/table"),
        _codes(onnx, f"{stem}/codes", codes, tensor),
    ]
    nodes = [
        helper.make_node(
            "Cast", [f"{stem}/codes"], [f"{stem}/index"], to=onnx.TensorProto.INT32
        )
    ]
    steps: list[tuple[str, list[str], dict[str, Any]]] = []
    if per_row:
        assert tensor.axis is not None
        steps.append(
            ("GatherElements", [f"{stem}/table", f"{stem}/index"], {"axis": 1})
        )
        constants.append(from_array(np.array(rows_shape, np.int64), f"{stem}/shape"))
        steps.append(("Reshape", [f"{stem}/shape"], {}))
        order = [
            *range(1, tensor.axis + 1),
            0,
            *range(tensor.axis + 1, len(tensor.shape)),
        ]
        steps.append(("Transpose", [], {"perm": order}))
    else:
        steps.append(("Gather", [f"{stem}/table", f"{stem}/index"], {}))
    for part, scale in (("scale", tensor.scale), ("column_scale", tensor.column_scale)):
        if scale is not None:
            constants.append(from_array(scale.cpu().numpy(), f"{stem}/{part}"))
            steps.append(("Mul", [f"{stem}/{part}"], {}))
    value = ""
    for number, (kind, inputs, attributes) in enumerate(steps, 1):
        # The last step gives the tensor the name of the initializer that it replaces.
        output = name if number == len(steps) else f"{stem}/value{number}"
        nodes.append(
            helper.make_node(
                kind, [value, *inputs] if value else inputs, [output], **attributes
            )
        )
        value = output
    return constants, nodes


def _codes(onnx: Any, name: str, codes: Any, tensor: CompressedTensor) -> Any:
    assert tensor.levels is not None
    if tensor.levels > 16:
        return onnx.numpy_helper.from_array(np.ascontiguousarray(codes), name)
    flat = codes.reshape(-1)
    flat = np.append(flat, np.uint8(0)) if len(flat) % 2 else flat
    # ONNX packs two 4-bit numbers in a byte, the first in its low half.
    packed = (flat[::2] | (flat[1::2] << 4)).astype(np.uint8)
    return onnx.helper.make_tensor(
        name, onnx.TensorProto.UINT4, codes.shape, packed.tobytes(), raw=True
    )
