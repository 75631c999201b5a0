"""The side of GPTQ in lm_peers.py: an interpreter that has gptqmodel quantizes a model
on given windows, and writes what its linear layers became.

usage: PYTHON benchmarks/lm_peers_gptq.py MODEL_FOLDER WINDOWS.pt BITS GROUP OUT.pt [asymmetric] [ordered] [searched]

asymmetric: groups have zeros. ordered: columns of large activations come first
(desc_act). searched: steps of least squared error (mse).

OUT holds for each layer its weights in float32 and its codes; and the bytes of the
folder's files that gptqmodel writes itself.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def codes_of(layer: Any, weight: Tensor) -> tuple[Tensor, int]:
    """Outputs × inputs, and how many groups there are: a code is what the scale and
    the zero of its group make of the weight.
    """
    scales, groups = layer.scales.float(), layer.g_idx.long()
    steps = (weight.T / scales[groups]).round()
    lowest = torch.full_like(scales, torch.inf).index_reduce_(0, groups, steps, "amin")
    return (steps - lowest[groups]).T.to(torch.uint8).contiguous(), scales.numel()


def main() -> None:
    folder, windows, bits, group, out, *asked = sys.argv[1:]
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig

    config = QuantizeConfig(
        bits=int(bits),
        group_size=int(group),
        desc_act="ordered" in asked,
        sym="asymmetric" not in asked,
        mse=2.4 if "searched" in asked else 0.0,  # the power of GPTQ's own search
    )
    model = GPTQModel.load(folder, config, device="cpu", dtype=torch.float32)
    cut = torch.load(windows, weights_only=True)
    given = [
        {"input_ids": w[None], "attention_mask": torch.ones_like(w)[None]} for w in cut
    ]
    model.quantize(given, batch_size=1, backend=BACKEND.TORCH)
    with tempfile.TemporaryDirectory() as written:
        model.save(written)
        files = sum(p.stat().st_size for p in Path(written).glob("*.safetensors"))
        # What it has made is on no device until it is loaded.
        model = GPTQModel.load(written, device="cpu", backend=BACKEND.TORCH)
    weights, codes, groups = {}, {}, 0
    for name, layer in model.model.named_modules():
        if hasattr(layer, "qweight"):
            weights[name] = layer.dequantize_weight().T.float().contiguous()
            codes[name], count = codes_of(layer, weights[name])
            groups += count
    assert weights, "gptqmodel quantized no layer"
    made = {"weights": weights, "codes": codes, "groups": groups, "file_bytes": files}
    torch.save(made | {"version": version("gptqmodel")}, out)


if __name__ == "__main__":
    main()
