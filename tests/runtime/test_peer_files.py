"""What other engines are handed: few-bit codes that lose nothing a ternary weight has."""

from __future__ import annotations

import numpy as np
import pytest

from tersify.runtime.peer_files import BLOCKS, few_bits


def dense(codes: np.ndarray, scales: np.ndarray, bits: int, inputs: int) -> np.ndarray:
    """As ONNX Runtime reads it: the lowest bits of a byte come first, the middle code
    is zero.
    """
    outputs = codes.shape[0]
    each = (codes[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & (2**bits - 1)
    steps = each.reshape(outputs, -1, BLOCKS[bits]).astype(np.float32) - 2 ** (bits - 1)
    return (steps * scales.reshape(outputs, -1, 1)).reshape(outputs, -1)[:, :inputs]


@pytest.mark.parametrize("bits", BLOCKS)
def test_a_ternary_matrix_comes_back_from_few_bits_as_it_was(bits):
    draw = np.random.default_rng(0)
    weight = draw.integers(-1, 2, (6, 300)).astype(np.float32) * 0.125
    weight[2] = 0
    codes, scales = few_bits(weight, bits)
    np.testing.assert_allclose(dense(codes, scales, bits, 300), weight, rtol=1e-6)


def test_four_bits_are_off_by_at_most_half_a_step():
    weight = np.random.default_rng(1).normal(size=(5, 512)).astype(np.float32)
    codes, scales = few_bits(weight, 4)
    error = np.abs(dense(codes, scales, 4, 512) - weight).reshape(5, 2, 256).max(2)
    assert (error <= 0.501 * scales.reshape(5, 2)).all()


def test_onnx_runtime_computes_what_the_codes_say(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    import torch
    from torch import nn

    from tersify.runtime.peer_files import write_models

    layer = nn.Linear(256, 128, bias=False)
    layer.weight.data = torch.randint(-1, 2, layer.weight.shape).float() / 16
    x = torch.randn(2, 256)
    write_models(
        layer.eval(), x, tmp_path, wanted=("onnxruntime-int4", "onnxruntime-int2")
    )
    for bits in BLOCKS:
        session = onnxruntime.InferenceSession(
            tmp_path / f"model-int{bits}.onnx", providers=["CPUExecutionProvider"]
        )
        found = session.run(None, {"x": x.numpy()})[0]
        wanted = layer(x).detach().numpy()
        # its activations have 8 bits
        assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
