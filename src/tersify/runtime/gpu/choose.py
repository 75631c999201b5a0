"""Which packed form, activations and tiling serve a layer best, if any does: checked
first, then measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tersify.runtime.check import difference
from tersify.runtime.gpu.layer import PackedLinear, channels_axis_of, matrix_of
from tersify.runtime.gpu.measured import Measured, Work
from tersify.runtime.gpu.operator import reference
from tersify.runtime.gpu.packed import Packed, forms_of, in_whole_steps, pack, why_not
from tersify.runtime.gpu.plan import Choice
from tersify.runtime.gpu.products import BF16_PARTS, INT8, TYPES, Settings
from tersify.runtime.gpu.timing import copies_of
from tersify.runtime.gpu.tuning import CLASSES
from tersify.runtime.weights import Weight, classified_by_torch, classify
from tersify.tensor import CompressedTensor

# of the largest output
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 8e-3}
OWN_TYPES = {torch.float32: BF16_PARTS, torch.float16: "fp16", torch.bfloat16: "bf16"}
CHECKED_VECTORS = (1, 3, 13, 32)  # one of every class
MAX_CHECKED = 256


class CannotPack(ValueError):  # noqa: N818  (a reason, not a fault)
    """Torch runs the layer; the message says why. `serious`: something failed that
    should work.
    """

    def __init__(self, reason: str, *, serious: bool = False) -> None:
        super().__init__(reason)
        self.serious = serious


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """A layer as the example met it."""

    name: str
    layer: nn.Module
    x: Tensor
    origin: CompressedTensor | None = None

    @property
    def vectors(self) -> Tensor:
        return self.x.movedim(channels_axis_of(self.layer), -1).flatten(0, -2)


def allowed_activations(precision: str, dtype: torch.dtype, *, int8: bool) -> list[str]:
    """A module in a 16-bit type keeps it: its activations have been rounded by itself."""
    if dtype not in OWN_TYPES:
        raise CannotPack(
            f"its type is {dtype}; kernels take float32, float16 and bfloat16"
        )
    own = OWN_TYPES[dtype]
    if precision == "int8":
        return [INT8]
    if precision in ("fp16", "bf16") and dtype == torch.float32:
        own = precision
    return [own, INT8] if precision == "auto" and int8 else [own]


def chosen(
    seen: Seen, activations: list[str], costs: Measured
) -> tuple[PackedLinear, Choice]:
    """The fastest way that is right and faster than torch; CannotPack where there is
    none.
    """
    weight = _weight_of(seen)
    own = costs.of(_name("torch", seen), lambda: _torch_works(seen))
    best: tuple[float, PackedLinear, str] | None = None
    problem = ""
    for packed, kind in _candidates(seen, weight, activations):
        try:
            checked(packed, seen, kind)
            for settings in _settings(packed.form, kind, len(seen.vectors)):
                layer = layer_of(packed, seen, kind, settings)
                name = _name(f"{packed.form} {kind} {settings.flat()}", seen)
                cost = costs.of(name, lambda layer=layer: _packed_works(layer, seen))  # type: ignore[misc]
                if best is None or cost < best[0]:
                    best = (cost, layer, kind)
        except RuntimeError as error:
            # another GPU may lack the memory or the instructions
            problem = str(error).partition("\n")[0]
    if best is None:
        raise CannotPack(problem, serious=True)
    cost, layer, kind = best
    times = f"{cost:.2f} µs, torch {own:.2f} µs"
    if cost >= own:
        raise CannotPack(f"torch is faster: {layer.form} {times}")
    return layer, Choice(
        name=seen.name, form=layer.form, activations=kind, reason=times
    )


def _weight_of(seen: Seen) -> Weight:
    matrix = matrix_of(seen.layer)
    assert matrix is not None
    dense = matrix.float().contiguous()
    found = classified_by_torch(dense)
    if found is None:
        raise CannotPack("its weight holds NaN or infinite numbers")
    if (
        why_not(found)
        and seen.origin is not None
        and seen.origin.shape == tuple(matrix.shape)
    ):
        found = classify(seen.name, matrix.cpu(), seen.origin)
        found = replace(found, values=found.values.to(matrix.device))
    reason = why_not(found)
    if reason:
        raise CannotPack(reason)
    return found


def _candidates(
    seen: Seen, weight: Weight, activations: list[str]
) -> Iterator[tuple[Packed, str]]:
    matrix = matrix_of(seen.layer)
    assert matrix is not None
    for form in forms_of(weight):
        packed = pack(weight, form)
        if not torch.equal(packed.dense().to(matrix.dtype), matrix):
            raise CannotPack("its packed form is not the same weight")
        for kind in activations:
            yield (
                _for_activations(packed, kind, exact=OWN_TYPES[matrix.dtype] == kind),
                kind,
            )


def _for_activations(packed: Packed, kind: str, *, exact: bool) -> Packed:
    if kind == INT8:
        return in_whole_steps(packed)
    if packed.levels is None:
        return packed
    levels = packed.levels.to(TYPES[kind]).float()
    if not bool(levels.isfinite().all()):
        raise CannotPack(f"its levels are too large for {kind}")
    if exact and not torch.equal(levels, packed.levels):
        raise CannotPack(
            f"its levels are not exact in {TYPES[kind]}; a 16-bit precision, or int8, would round them"
        )
    return replace(packed, levels=levels)


def layer_of(packed: Packed, seen: Seen, kind: str, settings: Settings) -> PackedLinear:
    bias = seen.layer.bias
    return PackedLinear(
        packed,
        bias if isinstance(bias, Tensor) else None,
        activations=kind,
        settings=settings,
        dtype=seen.x.dtype,
        channels_axis=channels_axis_of(seen.layer),
        like=seen.layer,
    )


def checked(packed: Packed, seen: Seen, kind: str) -> None:
    """Every class of launches on the first input, against float64 on the same numbers."""
    vectors = seen.vectors
    counts = sorted(
        {*CHECKED_VECTORS, min(len(vectors), MAX_CHECKED), Settings().dense_from}
    )
    many = vectors.repeat(-(-counts[-1] // len(vectors)), 1)[: counts[-1]].contiguous()
    layer = layer_of(packed, seen, kind, Settings())
    wanted = reference(many, packed, layer.bias, kind)
    for settings in Settings().others(packed.form, 1):
        _compare(many[:1], wanted[:1], layer_of(packed, seen, kind, settings))
    for count in counts:
        _compare(many[:count], wanted[:count], layer)


def _compare(x: Tensor, wanted: Tensor, layer: PackedLinear) -> None:
    made = layer.on_vectors(x)
    apart = difference(made.double(), wanted)
    if not apart <= TOLERANCES[x.dtype]:
        raise CannotPack(
            f"the kernel's result is {apart:.1e} of the largest number away from torch's at {len(x)} vectors",
            serious=True,
        )


def _settings(form: str, kind: str, vectors: int) -> Iterator[Settings]:
    for settings in Settings().others(form, vectors):
        yield settings
        if vectors > CLASSES[-1] and kind != INT8:
            yield replace(
                settings,
                dense_from=vectors if vectors < settings.dense_from else vectors + 1,
            )


def _torch_works(seen: Seen) -> list[Work]:
    weight = seen.layer.weight
    assert isinstance(weight, Tensor)
    works: list[Work] = []
    for _ in range(copies_of(weight.nbytes)):
        copied = {"weight": weight.detach().clone()}
        works.append(partial(functional_call, seen.layer, copied, (seen.x,)))
    return works


def _packed_works(layer: PackedLinear, seen: Seen) -> list[Work]:
    works: list[Work] = []
    for _ in range(copies_of(layer.data.nbytes)):
        copied = {"data": layer.data.clone()}
        works.append(partial(functional_call, layer, copied, (seen.x,)))
    return works


def _name(way: str, seen: Seen) -> str:
    layer = type(seen.layer).__name__
    matrix = matrix_of(seen.layer)
    assert matrix is not None
    rows, features = matrix.shape
    return f"{way}: {layer} {rows}×{features}, {tuple(seen.x.shape)} {seen.x.dtype}"
