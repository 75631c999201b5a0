"""What no kernel serves stays a call of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tersify.runtime.capture.randomness import is_random
from tersify.runtime.capture.values import Ref, resolve
from tersify.runtime.nested import map_leaves
from tersify.runtime.ops.base import Op

if TYPE_CHECKING:
    from tersify.runtime.engine import Emitter
    from tersify.runtime.plan import Node, Quant

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchCall(Op):
    """`args` and `kwargs` hold a Ref for each value."""

    kind: ClassVar[str] = "torch call"
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def in_torch(self) -> bool:
        return True

    @property
    def draws(self) -> bool:
        own = getattr(self.target, "func", self.target)  # of a write in place
        return is_random(own, self.args, self.kwargs)

    def reference(
        self, sources: Sequence[Any], node: Node, quants: Mapping[str, Quant]
    ) -> Any:
        values = dict(zip(node.inputs, sources, strict=True))
        return self.target(*resolve(self.args, values), **resolve(self.kwargs, values))

    def emit(self, emitter: Emitter, node: Node) -> int:
        raise AssertionError("a torch call has no kernel")

    def renamed(self, names: Mapping[str, str]) -> TorchCall:
        def new(leaf: Any) -> Any:
            return Ref(names.get(leaf.name, leaf.name)) if type(leaf) is Ref else leaf

        return replace(
            self, args=map_leaves(self.args, new), kwargs=map_leaves(self.kwargs, new)
        )

    def describe(self, inputs: tuple[str, ...]) -> list[str]:
        return [getattr(self.target, "__name__", str(self.target))]


# A value keeps its numbers but not its strides: these must not depend on them.
FREE_OF_STRIDES: dict[Any, Any] = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
}
