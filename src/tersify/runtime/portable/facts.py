"""What a plan says besides its calls: how images go in, and what the outputs are called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tersify.runtime.portable.program import Program


def described(
    program: Program, *, image: Any = None, labels: Sequence[str] = ()
) -> Program:
    """`image` is (mean, std), each a number or one for each channel."""
    if image is not None:
        mean, std = _image(image)
        channels = program.inputs[0].shape[1:2]
        if len(mean) not in (1, *channels):
            raise ValueError(
                f"the network takes images of {(*channels, 1)[0]} channels, got a mean of {len(mean)}"
            )
        program = replace(program, mean=mean, std=std)
    if isinstance(labels, str) or not all(isinstance(name, str) for name in labels):
        raise ValueError("labels must be a list of names, one for each output")
    classes = program.outputs[0].shape[-1:]
    if labels and (len(labels),) != classes:
        raise ValueError(
            f"the network has {(*classes, 1)[0]} outputs, got {len(labels)} labels"
        )
    return replace(program, labels=tuple(labels))


def _image(image: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        mean, std = (
            tuple(map(float, part)) if isinstance(part, Sequence) else (float(part),)
            for part in image
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"image must be (mean, std), numbers or one number for each channel, got {image!r}"
        ) from None
    if len(mean) != len(std):
        raise ValueError(
            f"an image has as many numbers in its mean as in its std, got {len(mean)} and {len(std)}"
        )
    # as the file holds them, where a small one may be 0
    mean, std = (
        tuple(torch.tensor(part, dtype=torch.float32).tolist()) for part in (mean, std)
    )
    if not all(map(math.isfinite, mean)):
        raise ValueError(f"the mean of an image must be finite, got {mean}")
    if not std or not all(0 < each < math.inf for each in std):
        raise ValueError(f"the std of an image must be finite and above 0, got {std}")
    return mean, std
