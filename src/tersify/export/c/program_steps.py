"""A program → the steps of the C source: which kernel, which buffers, and the constants
of each channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from tersify.codec.errors import TerseFileError
from tersify.export.c.c_steps import Steps
from tersify.export.c.other_steps import OtherSteps
from tersify.export.c.product_steps import ProductSteps
from tersify.runtime.portable.program import Program
from tersify.runtime.portable.signatures import CALLS
from tersify.runtime.portable.sizes import Sizes, evaluated
from tersify.tensor import CompressedTensor


def steps_of(
    program: Program, tensors: Mapping[str, CompressedTensor | Tensor]
) -> Steps:
    """Every call must have a kernel in C; the error names the one that has none."""
    if program.length is not None:
        raise ValueError(
            f"a C source runs one length, and this plan runs {program.length.describe()}; save it without the second "
            "example"
        )
    if program.batch not in (None, 1):
        raise ValueError(
            f"a C source runs one item, and this plan is for a batch of {program.batch}"
        )
    if program.absolute:
        calls = tuple(evaluated(call, Sizes(1, 1)) for call in program.calls)
        program = replace(program, calls=calls, absolute=False)
    try:
        return _Lowering(program, tensors).run()
    except (IndexError, KeyError, TypeError, AttributeError) as problem:
        raise TerseFileError(
            f"the plan is not as docs/reference/format.md says: {problem!r}"
        ) from None


class _Lowering(ProductSteps, OtherSteps):
    def run(self) -> Steps:
        for name, *arguments in self._program.calls:
            handler = getattr(self, f"_{name}", None) if name in CALLS else None
            if handler is None:
                raise ValueError(
                    f"the plan has the call {name!r}, which has no kernel in C; it stays with libtersify"
                )
            handler(*arguments)
        return self._made
