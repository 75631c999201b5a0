"""The one place that imports onnx, and how a graph gets into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tersify.codec.atomic import replacing


def onnx_module() -> Any:
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise ValueError(
            "writing ONNX needs the package onnx; pip install 'tersify[onnx]'"
        ) from None
    return onnx


def save_checked(model: Any, path: Path) -> None:
    """Nothing is written that onnx's own checker refuses."""
    onnx = onnx_module()
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        onnx.save(model, file)
