"""Curves without an end in both directions: powers of e, logarithms and roots.

What they make may be infinite or NaN; an engine notices that and leaves the call to
torch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tersify.runtime.capture.values import Call
from tersify.runtime.ops.base import CannotLower, Context, Op, lowers
from tersify.runtime.ops.elementwise import Elementwise

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten


class CurveKind(enum.Enum):
    EXP = "exp"
    LOG = "log"
    LOG_SIGMOID = "log sigmoid"
    ROOT = "root"


_CURVES: dict[CurveKind, Callable[[Tensor], Tensor]] = {
    CurveKind.EXP: torch.exp,
    CurveKind.LOG: torch.log,
    CurveKind.LOG_SIGMOID: F.logsigmoid,
    CurveKind.ROOT: torch.sqrt,
}
_TARGETS: dict[Any, CurveKind] = {
    aten.exp.default: CurveKind.EXP,
    aten.log.default: CurveKind.LOG,
    aten.log_sigmoid_forward.default: CurveKind.LOG_SIGMOID,
    aten.sqrt.default: CurveKind.ROOT,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve(Op):
    """One curve of every number."""

    kind: ClassVar[str] = "curve"
    curve: CurveKind

    def reference(
        self, sources: Sequence[Tensor], node: Node, quants: Mapping[str, Quant]
    ) -> Tensor:
        return _CURVES[self.curve](sources[0])

    def emit(self, emitter: Emitter, node: Node) -> int:
        curve = getattr(emitter.module.Curve, self.curve.name)
        return emitter.engine.curve(emitter.source(node), curve)

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        return [self.curve.value]


@lowers(*_TARGETS)
def _lower_curve(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    given = call.arguments()["self"]
    context.floats(given)
    # The second result of log_sigmoid_forward is a buffer of its gradient.
    context.only_first_result(call)
    return Curve(curve=_TARGETS[call.target]), (given.name,)


@lowers(aten.pow.Tensor_Scalar)
def _lower_power(call: Call, context: Context) -> tuple[Op, tuple[str, ...]]:
    a = call.arguments()
    context.floats(a["self"])
    if a["exponent"] != 2:
        raise CannotLower("of powers only the square has a kernel")
    return Elementwise(multiply=True), (a["self"].name, a["self"].name)
