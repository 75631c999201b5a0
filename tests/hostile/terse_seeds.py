"""Small good files that reach every coder: the starting points of the fuzz run."""

from __future__ import annotations

import functools
from pathlib import Path
from unittest import mock

import torch

from tersify.codec import native, save
from tersify.tensor import CompressedModel, CompressedTensor


def _weights(*shape: int) -> torch.Tensor:
    """Smooth kernels, strong and weak filters and channels: structure for every context
    to find.
    """
    weights = torch.randn(shape)
    for dim in range(2, len(shape)):
        weights = weights.cumsum(dim)
    for dim in range(min(2, len(shape))):
        weights = (
            weights
            * torch.randn([n if d == dim else 1 for d, n in enumerate(shape)])
            .mul(0.8)
            .exp()
        )
    return weights


def _ternary(*shape: int) -> CompressedTensor:
    weights = _weights(*shape)
    codes = (1 + (weights > 0)) * (weights.abs() > weights.abs().quantile(0.6))
    return CompressedTensor(
        shape=shape,
        codes=codes.to(torch.uint8),
        codebook=torch.tensor([0.0, -0.5, 0.5]),
    )


def _lut(*shape: int) -> CompressedTensor:
    codebook = torch.linspace(-8, 8, 12)
    codes = torch.bucketize(_weights(*shape), (codebook[1:] + codebook[:-1]) / 2)
    return CompressedTensor(shape=shape, codes=codes.to(torch.uint8), codebook=codebook)


def _pruned(*shape: int) -> CompressedTensor:
    weights = _weights(*shape)
    mask = (weights.abs() > weights.abs().quantile(0.7)).to(torch.uint8)
    return CompressedTensor(shape=shape, codes=mask, values=weights[mask.bool()])


def _skewed(*shape: int) -> CompressedTensor:
    """Many codes too rare for the tables, which are split off."""
    codes = torch.multinomial(
        0.5 ** torch.arange(150.0).clamp(max=13),
        torch.Size(shape).numel(),
        replacement=True,
    )
    return CompressedTensor(
        shape=shape,
        codes=codes.to(torch.uint8).reshape(shape),
        codebook=torch.arange(150.0),
    )


def _tiled() -> CompressedTensor:
    """Codes that repeat, which zstd codes."""
    codes = torch.randint(0, 5, (4, 100), dtype=torch.uint8).repeat(20, 1)
    return CompressedTensor(shape=(80, 100), codes=codes, codebook=torch.arange(5.0))


def _signed_zeros(*shape: int) -> torch.Tensor:
    weights = torch.randn(shape)
    return weights * (weights.abs() > 1)


def _models() -> list[CompressedModel]:
    per_row = CompressedTensor(
        shape=(4, 6),
        codes=torch.randint(0, 5, (4, 6), dtype=torch.uint8),
        codebook=torch.rand(6, 5) + 1,
        axis=1,
        scale=torch.rand(4, 1),
        format={"n": 4},
    )
    return [
        CompressedModel(
            {
                "a.weight": _ternary(24, 24, 3, 3),
                "b.weight": _ternary(5, 7),
                "bn.bias": torch.randn(6),
            }
        ),
        CompressedModel(
            {"a.weight": _lut(32, 24, 3, 3), "b.weight": _lut(3, 4, 5)},
            metadata={"epochs": 3},
        ),
        CompressedModel(
            {"a.weight": _pruned(24, 20, 3, 3), "b.weight": _pruned(40)},
            recipe="[[rule]]\n",
        ),
        CompressedModel(
            {"w": per_row, "steps": torch.tensor(3), "on": torch.tensor([True, False])}
        ),
        CompressedModel({"w": _ternary(64, 64)}, aliases={"tied": "w"}),
        CompressedModel(
            {
                "h": torch.randn(600).half(),
                "b": torch.randn(9).bfloat16(),
                "d": torch.randn(3).double(),
            }
        ),
        CompressedModel({"w": _skewed(100, 90), "v": _skewed(7000)}),
        CompressedModel(
            {
                "w": _signed_zeros(60, 40),
                "b": torch.randn(30).repeat(9),
                "same": _signed_zeros(50, 20),
            }
        ),
        CompressedModel(
            {
                "a": (equal := torch.randn(70)),
                "b": equal.clone(),
                "c": _ternary(9, 9),
                "t": _tiled(),
            }
        ),
    ]


def seeds(folder: Path) -> list[bytes]:
    """Each model as the encoder writes it, and again with 32 lanes, for the vector
    decoders.
    """
    torch.manual_seed(1)
    made = []
    compiled = native.extension()
    for model in _models():
        path = folder / "good.terse"
        save(model, path)
        made.append(path.read_bytes())
        if compiled is not None:
            wide = mock.Mock(
                wraps=compiled,
                encode_codes=functools.partial(compiled.encode_codes, lanes_log2=5),
            )
            with mock.patch.object(native, "extension", return_value=wide):
                save(model, path)
            made.append(path.read_bytes())
    return made
