"""What the makers of steps share: the program, its values as buffers, and the steps that
are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tersify.export.c.c_steps import Buffer, Step, Steps
from tersify.export.c.layer_constants import LayerConstants
from tersify.export.c.step_buffers import StepBuffers
from tersify.runtime.portable.program import Program
from tersify.tensor import CompressedTensor


class StepMaker:
    """A subclass has a method for each call of a program, by the call's name."""

    def __init__(
        self, program: Program, tensors: Mapping[str, CompressedTensor | Tensor]
    ) -> None:
        self._program = program
        self._made = Steps()
        self._values = StepBuffers(self._made)
        self._constants = LayerConstants(program, tensors)

    def _step(
        self, kernel: str, reads: tuple[Buffer, ...], writes: Buffer, **more: Any
    ) -> None:
        self._made.steps.append(Step(kernel=kernel, reads=reads, writes=writes, **more))
