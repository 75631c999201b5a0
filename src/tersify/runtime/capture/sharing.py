"""Outputs that share memory: with an input, a tensor of the module, or each other. Who
edits one of them edits the other, so a compiled network must return it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.capture.recorder import Recorder
from tersify.runtime.capture.shared_memory import Geometry
from tersify.runtime.capture.values import Call, Share, Sharing, refs

aten = torch.ops.aten
# a copy only where the numbers do not lie in the order that is asked for
_PUTS_IN_ORDER = (aten.clone.default, aten._to_copy.default)


def sharing(
    recorder: Recorder, outputs: Sequence[Tensor], live: Mapping[str, Tensor]
) -> Sharing:
    """`live`: the inputs and the state of the run."""
    named: dict[str, Tensor] = {}
    for tensor in outputs:
        named.setdefault(recorder.current(tensor), tensor)
    bases: dict[int, tuple[str | Tensor, Tensor]] = {
        memory_of(tensor): (tensor, tensor) for tensor in recorder.memory.from_outside()
    }
    bases |= {memory_of(tensor): (name, tensor) for name, tensor in live.items()}
    shares: dict[str, Share] = {}
    own: dict[int, dict[str, Tensor]] = {}
    is_entangled = False
    for name, tensor in named.items():
        base = bases.get(memory_of(tensor))
        if recorder.owns(tensor):
            shares[name] = Share(base=tensor)
        elif base is None:
            own.setdefault(memory_of(tensor), {})[name] = tensor
        elif base[1] is tensor:
            shares[name] = Share(base=base[0])
        elif overlap(base[1], tensor):
            share = _share(base[0], base[1], tensor)
            is_entangled |= share is None
            shares |= {} if share is None else {name: share}
    for group in own.values():
        found = _among(group)
        is_entangled |= found is None
        shares |= found or {}
    return Sharing(
        shares=shares,
        is_entangled=is_entangled,
        loose_inputs=_loose_inputs(recorder.calls, named, live),
    )


def _among(group: Mapping[str, Tensor]) -> dict[str, Share] | None:
    """Of outputs in one piece of memory that no one else has; None where it cannot be
    said by one of them.
    """
    touching = [
        name
        for name, tensor in group.items()
        if any(overlap(tensor, o) for other, o in group.items() if other != name)
    ]
    if not touching:
        return {}
    base = max(touching, key=lambda name: group[name].numel())
    if not _is_dense(group[base]):
        return None
    shares = {
        name: _share(base, group[base], group[name])
        for name in touching
        if name != base
    }
    found = {name: share for name, share in shares.items() if share is not None}
    return found if len(found) == len(shares) else None


def _share(base: str | Tensor, memory: Tensor, tensor: Tensor) -> Share | None:
    """None where numbers of another type, or others than those of the base, are seen."""
    apart = int(tensor.storage_offset()) - int(memory.storage_offset())
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    end = sum((n - 1) * s for n, s in zip(memory.shape, memory.stride(), strict=True))
    alike = (tensor.dtype, tensor.is_conj(), tensor.is_neg()) == (
        memory.dtype,
        memory.is_conj(),
        memory.is_neg(),
    )
    if not alike or apart < 0 or apart + last > end:
        return None
    view = (tuple(tensor.shape), tensor.stride(), apart)
    return Share(base=base, view=view, stride=memory.stride())


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether a number of one is a number of the other."""
    if memory_of(one) != memory_of(other) or not one.numel() or not other.numel():
        return False
    if one.itemsize != other.itemsize:
        return True  # nothing shorter is known
    size = one.untyped_storage().nbytes() // one.itemsize
    marks = torch.zeros(size, dtype=torch.bool)
    _seen_of(marks, one).fill_(True)
    return bool(_seen_of(marks, other).any())


def _seen_of(marks: Tensor, tensor: Tensor) -> Tensor:
    # An expanded axis is one number; `fill_` refuses to write it more than once.
    shape = [
        1 if step == 0 else n
        for n, step in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return marks.as_strided(shape, tensor.stride(), int(tensor.storage_offset()))


def _is_dense(tensor: Tensor) -> bool:
    """One number behind the other without gaps, whatever the order of the axes."""
    order = sorted(range(tensor.ndim), key=lambda axis: tensor.stride(axis))
    return Geometry.of(tensor.permute(order[::-1])).is_contiguous


def _loose_inputs(
    calls: Iterable[Call], outputs: Iterable[str], live: Mapping[str, Any]
) -> frozenset[str]:
    """Inputs that reach an output by views, and by copies that other strides would have
    spared.
    """
    made = {name: call for call in calls for name in call.results}
    found = set()
    for output in outputs:
        name, is_loose = output, False
        while name in made and _hands_on(made[name]):
            is_loose |= made[name].target in _PUTS_IN_ORDER
            name = refs(made[name].args)[0]
        if is_loose and name in live:
            found.add(name)
    return frozenset(found)


def _hands_on(call: Call) -> bool:
    """Whether its result may be the memory of its first argument."""
    schema = getattr(call.target, "_schema", None)
    if schema is None or not refs(call.args):
        return False
    if call.target is aten._unsafe_view.default:
        return True
    if call.target in _PUTS_IN_ORDER:
        given = call.kwargs.get("memory_format")
        return given not in (None, torch.preserve_format)
    returned = schema.returns[0].alias_info if schema.returns else None
    return returned is not None and not returned.is_write


def memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
