"""What a run hands to its caller: tensors with memory of their own, or that of the very
tensors whose memory the module's results have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from tersify.runtime.capture import Graph
from tersify.runtime.capture.shared_memory import with_strides
from tersify.runtime.capture.sharing import memory_of, overlap
from tersify.runtime.capture.values import Share


class Returned:
    """Of one graph. `given` and `made` are the inputs and results of a run of its
    network, `constants` what that network holds; `made` is None where a run would leave
    a trace.
    """

    def __init__(
        self,
        graph: Graph,
        given: Sequence[Tensor],
        made: Sequence[Tensor] | None,
        constants: Mapping[str, Tensor],
    ) -> None:
        self._names = graph.results
        self._shares = dict(graph.sharing.shares)
        self._inputs = graph.inputs
        self._state = graph.state
        held = {memory_of(x) for x in (*given, *constants.values())}
        own = [i for i, name in enumerate(self._names) if name not in self._shares]
        # The caller may write into a result, which must change nothing else.
        self._copied = [
            i
            for i in own
            if made is None
            or memory_of(made[i]) in held
            or any(overlap(made[i], made[j]) for j in own if j < i)
        ]
        # Their strides decide what the module would return.
        read = {s.base for s in self._shares.values() if s.view is not None}
        self._ordered = [
            (i, given[i].stride())
            for i, name in enumerate(graph.inputs)
            if name in (read | graph.sharing.loose_inputs)
        ]
        self.is_entangled = graph.sharing.is_entangled
        self.is_as_made = not self._shares and not self._copied

    @property
    def minds_strides(self) -> bool:
        return bool(self._ordered)

    def needs_the_module(self, inputs: Sequence[Tensor]) -> bool:
        """Whether inputs that lie in memory like these share it with results in a way
        that only the module can give.
        """
        return any(inputs[i].stride() != stride for i, stride in self._ordered)

    def finished(self, made: list[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        """The results as the module's would be."""
        for i in self._copied:
            made[i] = made[i].clone()
        if not self._shares:
            return made
        values = dict(zip(self._names, made, strict=True))
        places = dict(zip(self._inputs, inputs, strict=True)) | dict(self._state)
        for name, share in self._shares.items():
            values[name] = _shared(share, values, places)
        return list(values.values())

    def alone(self, made: list[Tensor]) -> list[Tensor]:
        """The results with memory of their own, as operators of torch must return."""
        for i, name in enumerate(self._names):
            if i in self._copied or name in self._shares:
                made[i] = made[i].clone()
        return made


def _shared(
    share: Share, values: dict[str, Tensor], places: Mapping[str, Tensor]
) -> Tensor:
    if isinstance(share.base, Tensor):
        base = share.base
    elif share.base in places:
        base = places[share.base]
    else:
        base = values[share.base]
        if base.stride() != share.stride:
            base = with_strides(base, tuple(base.shape), share.stride)
            values[share.base] = base
    if share.view is None:
        return base
    shape, stride, apart = share.view
    return base.detach().as_strided(shape, stride, int(base.storage_offset()) + apart)
