"""Matrix products with a constant weight, over the last axis."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.capture.values import Call, Ref
from tersify.runtime.epilogue import Epilogue
from tersify.runtime.ops.base import (
    CannotLower,
    Context,
    Op,
    float64,
    float64_if_given,
    lowers,
)
from tersify.runtime.ops.levels import Levels
from tersify.runtime.ops.rounding import rounded_vectors
from tersify.runtime.ops.window import Window
from tersify.runtime.weights import Weight, WeightKind

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten


class LinearKernel(enum.Enum):
    """Which kernels run it; see docs/explanation/kernels.md."""

    F32 = "lists or table lookups"
    DENSE_F32 = "dense"
    I8 = "int8 activations"
    LEVELS_I8 = "dense codes, trained int8 activations"
    BITS = "bits"
    TORCH = "dense, in torch"


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear(Op):
    """The last axis of the input times the weight [outputs, features]."""

    kind: ClassVar[str] = "linear"
    weight: Weight
    parameter: str = ""
    epilogue: Epilogue = field(default_factory=Epilogue)
    kernel: LinearKernel = LinearKernel.F32
    levels: Levels | None = None  # of its input, where training chose them

    @property
    def in_torch(self) -> bool:
        return self.kernel is LinearKernel.TORCH

    @property
    def in_levels(self) -> bool:
        """Its kernel rounds the input to its levels."""
        return self.kernel in (LinearKernel.LEVELS_I8, LinearKernel.BITS)

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        x = sources[0]
        if self.in_levels:
            assert self.levels is not None
            x = self.levels.of(x)
        elif self.kernel is LinearKernel.I8:
            x = rounded_vectors(x)
        return self.epilogue.apply(self.weight.product(x), None, -1)

    def in_dense_torch(self) -> Linear:
        """The operation as one dense torch call: its scale folded into the weights."""
        weight = Weight(
            kind=WeightKind.FLOAT, values=self.weight.times(self.epilogue.scale)
        )
        return replace(
            self,
            weight=weight,
            epilogue=replace(self.epilogue, scale=None),
            kernel=LinearKernel.TORCH,
        )

    def torch_function(self, node: Node) -> Callable[..., Tensor]:
        """The reference with fewer passes over memory, for an operation that is dense
        in torch.
        """
        weight, bias = self.weight.values, self.epilogue.bias(len(self.weight.values))
        finish = self.epilogue.after_bias(-1)
        return lambda x: finish(F.linear(x, weight, bias), None)

    def emit(self, emitter: Emitter, node: Node) -> int:
        rows, features = self.weight.shape
        items, shape = emitter.item_of(node.inputs[0])
        # All leading axes of an item become rows: [1, rows, features].
        source = emitter.engine.view(
            emitter.source(node), items, (1, math.prod(shape) // features, features)
        )
        if self.kernel is LinearKernel.I8:
            return self._emit_int8(emitter, source)
        if self.kernel is LinearKernel.BITS:
            return self._emit_bits(emitter, source)
        if self.kernel is LinearKernel.LEVELS_I8:
            return self._emit_levels(emitter, source, items * math.prod(shape))
        return emitter.engine.linear(
            source, self.packed(emitter), self.epilogue.in_cpp(emitter.module, rows)
        )

    def packed(self, emitter: Emitter) -> Any:
        """The weights as the kernels for floats read them."""
        module, dense = emitter.module, self.kernel is LinearKernel.DENSE_F32
        kind = WeightKind.FLOAT if dense else self.weight.kind
        return emitter.packed(
            self.weight,
            (self.kernel,),
            lambda: module.pack_linear(
                emitter.workspace,
                (self.weight.factors if dense else self.weight.values).contiguous(),
                getattr(module.ValueKind, kind.name),
                [] if dense else self.weight.table_list,
                dense,
            ),
        )

    def _emit_int8(self, emitter: Emitter, source: int) -> int:
        signs = self.weight.kind is WeightKind.SIGN
        # Sums of whole steps: the epilogue multiplies by the size of one.
        step = 1.0 if signs else self.weight.step

        def pack() -> Any:
            whole = self.weight.values if signs else self.weight.whole_steps()[0]
            return emitter.module.pack_linear_i8(
                emitter.workspace, whole.contiguous(), signs
            )

        weights = emitter.packed(self.weight, (self.kernel,), pack)
        epilogue = self.epilogue.scaled_by(step)
        return emitter.engine.linear_i8(
            source, weights, epilogue.in_cpp(emitter.module, len(self.weight.values))
        )

    def _emit_bits(self, emitter: Emitter, source: int) -> int:
        assert self.levels is not None
        weights = emitter.packed(
            self.weight,
            (self.kernel,),
            lambda: emitter.module.pack_linear_bits(
                emitter.workspace, self.weight.values.contiguous()
            ),
        )
        epilogue = self.epilogue.in_cpp(emitter.module, len(self.weight.values))
        return emitter.engine.linear_bits(source, weights, epilogue, self.levels.in_cpp)

    def _emit_levels(self, emitter: Emitter, source: int, numbers: int) -> int:
        """As a convolution of images of one pixel: bytes of fixed steps are its own."""
        assert self.levels is not None
        rows, features = self.weight.shape
        whole, step = self.weight.whole_steps()
        weights = emitter.packed(
            self.weight,
            (self.kernel,),
            lambda: emitter.module.pack_conv_codes(
                emitter.workspace,
                whole.reshape(rows, features, 1, 1).contiguous(),
                list(Window(1, 1)),
            ),
        )
        scale = self.levels.in_cpp[0]
        pixels = emitter.engine.view(source, numbers // features, (features, 1, 1))
        return emitter.engine.conv_codes(
            pixels,
            weights,
            self.epilogue.scaled_by(scale * step).in_cpp(emitter.module, rows),
            -1,
            self.levels.in_cpp,
        )

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        kernel = "" if self.kernel is LinearKernel.F32 else self.kernel.value
        return [self.weight.describe(), self.epilogue.describe(), kernel]


@lowers(aten.linear.default)
def _lower_linear(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    return _linear(context, a["input"], a["weight"], a["bias"])


@lowers(aten.addmm.default)
def _lower_addmm(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    # addmm is beta · bias + alpha · (mat1 · mat2).
    if a["alpha"] != 1 or a["beta"] != 1 or context.is_constant(a["mat1"]):
        raise CannotLower(
            "only a product with a constant on the right, plus a bias, has a kernel"
        )
    return _linear(context, a["mat1"], a["mat2"], a["self"], transposed=True)


@lowers(aten.mm.default, aten.matmul.default)
def _lower_product(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    # `mm` calls its right operand mat2, `matmul` calls it other.
    left, right = (a[name] for name in ("self", "mat2" if "mat2" in a else "other"))
    return _linear(context, left, right, None, transposed=True)


def _linear(
    context: Context, source: Any, weight: Any, bias: Any, *, transposed: bool = False
) -> tuple[Op, tuple[str, ...]]:
    shape = context.floats(source)
    constant = context.constant(weight, "weight")
    if constant.ndim != 2 or len(shape) < 1:
        raise CannotLower("the kernel takes a weight of two axes")
    found = context.weight(weight, transposed=transposed)
    shift = context.optional(bias, "bias")
    # `addmm` may add a whole matrix, which is no bias.
    if shift is not None and shift.numel() not in (1, len(found.values)):
        raise CannotLower("its bias is not one number an output")
    epilogue = Epilogue(
        scale=float64_if_given(found.row_scale),
        shift=None if shift is None else float64(shift).reshape(-1),
    )
    assert isinstance(source, Ref)
    return Linear(
        weight=found, parameter=context.parameter(weight), epilogue=epilogue
    ), (source.name,)
