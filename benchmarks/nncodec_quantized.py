"""NNCodec with its own quantization: uniform steps, decided along a trellis by rate and
distortion (dependent quantization), and DeepCABAC.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

# of vectors: as coarse as the norms of the files beside it
VECTOR_QP = -42


def library() -> Any | None:
    """Its compressor, or None where it is not installed."""
    if importlib.util.find_spec("nncodec") is None:
        return None
    # Its frameworks import computer vision and training libraries, and serve to train
    # and evaluate only.
    for name in ("tensorflow_model", "pytorch_model", "use_case_init"):
        made = ModuleType(f"nncodec.framework.{name}")
        sys.modules.setdefault(made.__name__, made)
    frame: Any = ModuleType("nncodec.framework")
    for name in ("tensorflow_model", "pytorch_model", "use_case_init"):
        setattr(frame, name, sys.modules[f"nncodec.framework.{name}"])
    sys.modules.setdefault("nncodec.framework", frame)
    return importlib.import_module("nncodec.nnc.compression")


def coded(tensors: dict[str, Tensor], qp: int) -> tuple[dict[str, Tensor], int]:
    """The tensors as they come back, and the bytes of the bitstream."""
    nncodec = library()
    assert nncodec is not None
    plain = {name: t.detach().numpy().astype(np.float32) for name, t in tensors.items()}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        stream = nncodec.compress(
            plain,
            bitstream_path=None,
            qp=qp,
            nonweight_qp=VECTOR_QP,
            use_dq=True,
            lambda_scale=1.0,  # 0, its default, looks at distortion alone
            return_bitstream=True,
        )
        back = nncodec.decompress(bytearray(stream), verbose=False)
    made = {
        n: torch.from_numpy(np.array(a)).view(tensors[n].shape) for n, a in back.items()
    }
    return made, len(stream)
