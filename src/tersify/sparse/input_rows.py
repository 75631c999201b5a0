"""Runs a network on a calibration batch and keeps, for each sparse product, its weight
and some of its input rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tersify.modes import eval_mode
from tersify.sparse.formats import Array
from tersify.sparse.layer_products import calls, products
from tersify.sparse.lowering import multiply
from tersify.sparse.products import Call, CannotCollect, Product

SEED = 0
LAYER_TOLERANCE = 1e-2
SAMPLING = f"numpy.random.default_rng({SEED}).choice without replacement, ascending"


@dataclass
class Record:
    """One product of a network with the rows it was fed; `count` is how many rows the
    whole batch had.
    """

    layer: str
    parameter: str
    product: Product
    weight: Array
    count: int = 0
    calls: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[Tensor] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)

    @property
    def name(self) -> str:
        return _dotted(self.layer, self.product.part) or self.product.kind


def _dotted(*parts: str) -> str:
    """A name within a network, whose own name and the parts of some products are empty."""
    return ".".join(filter(None, parts))


def record(
    model: nn.Module, example: Any, *, rows: int, min_sparsity: float
) -> tuple[list[Record], dict[str, str]]:
    """Every product whose weight is sparse enough, and why other sparse weights have
    none.

    The batch runs twice: once to count rows, once to gather those that are kept.
    """
    watched, skipped = _layers_to_record(model, min_sparsity)
    records = [each for parts in watched.values() for each in parts.values()]
    with _eval_without_fast_path(model), torch.no_grad():
        # The number of rows must be known before a fixed fraction of them can be drawn
        # evenly; keeping all of them would take the memory of every activation.
        for gather in (False, True):
            wanted = (
                {id(each): _sample(each.count, rows) for each in records}
                if gather
                else None
            )
            _record_inputs(model, example, watched, wanted, skipped)
    records = [each for each in records if each.layer not in skipped]
    skipped |= {
        each.parameter: "the example does not reach it"
        for each in records
        if not each.count
    }
    records = [each for each in records if each.count]
    # A subclass may do more than multiply: then the stored product would not be the
    # layer's.
    strange = {
        each.parameter: "its layer computes something else than a product with it"
        for each in records
        if not _multiplies(each)
    }
    return [
        each for each in records if each.parameter not in strange
    ], skipped | strange


def _multiplies(each: Record) -> bool:
    """Whether the layer gave the product of its weight and rows, within what half
    precision allows.
    """
    if not each.results:
        return True
    weight, columns = (
        torch.from_numpy(each.weight).double(),
        torch.cat(each.rows).double().T,
    )
    error = (
        (
            multiply(weight, columns, each.product.groups).T
            - torch.cat(each.results).double()
        )
        .abs()
        .max()
    )
    scale = multiply(weight.abs(), columns.abs(), each.product.groups).max()
    return not bool(error > LAYER_TOLERANCE * scale)  # NaN is for the writer to refuse


def _layers_to_record(
    model: nn.Module, min_sparsity: float
) -> tuple[dict[str, dict[str, Record]], dict[str, str]]:
    watched: dict[str, dict[str, Record]] = {}
    covered: set[int] = set()
    # Attention multiplies with its children's weights itself, so their own hooks never
    # run.
    inside_attention = {
        id(child)
        for m in model.modules()
        if isinstance(m, nn.MultiheadAttention)
        for child in m.modules()
        if child is not m
    }
    for layer, module in model.named_modules():
        if id(module) in inside_attention:
            continue
        for product in products(module):
            parameter = _dotted(layer, product.parameter)
            covered.add(_address(_attribute(module, product.parameter)))
            weight = as_array(product.weight)
            if (
                weight.size
                and np.count_nonzero(weight == 0) >= min_sparsity * weight.size
            ):
                watched.setdefault(layer, {})[product.part] = Record(
                    layer, parameter, product, weight
                )
    skipped = {
        name: f"no layer of a known kind multiplies with it ({tuple(p.shape)})"
        for name, p in model.named_parameters()
        if p.ndim >= 2
        and _address(p) not in covered
        and not _is_parametrization(name)
        and p.numel()
        and 1 - int(p.count_nonzero()) / p.numel() >= max(min_sparsity, 1e-9)
    }
    return watched, skipped


def _attribute(module: nn.Module, dotted: str) -> Tensor:
    for name in dotted.split("."):
        module = getattr(module, name)
    return module  # type: ignore[return-value]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_parametrization(name: str) -> bool:
    """Latents and masks of parametrizations are not weights themselves."""
    return ".parametrizations." in f".{name}"


def _sample(count: int, rows: int) -> Array:
    if count <= rows:
        return np.arange(count)
    # Sorted, so rows come in the order of the calls; seeded, so a collection can be
    # made again.
    return np.sort(np.random.default_rng(SEED).choice(count, rows, replace=False))


def _record_inputs(
    model: nn.Module,
    example: Any,
    watched: Mapping[str, Mapping[str, Record]],
    wanted: Mapping[int, Array] | None,
    skipped: dict[str, str],
) -> None:
    seen: dict[int, int] = {}

    def take(each: Record, call: Call) -> None:
        if wanted is None:
            each.count += call.count
            each.calls += 1
            each.facts = {**call.facts, **each.facts}
            return
        before = seen.get(id(each), 0)
        seen[id(each)] = before + call.count
        chosen = wanted[id(each)]
        numbers = torch.from_numpy(
            # Numbers count over all calls of the layer; those of this call become its
            # own rows.
            chosen[(chosen >= before) & (chosen < before + call.count)] - before
        )
        if len(numbers):
            each.rows.append(call.rows(numbers).cpu())
            if call.result is not None:
                each.results.append(call.result(numbers).cpu())

    def hook(parts: Mapping[str, Record], layer: str) -> Any:
        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            try:
                for call in calls(module, args, kwargs, output):
                    if call.part in parts:
                        take(parts[call.part], call)
            except CannotCollect as problem:
                skipped[layer] = str(problem)

        return after

    modules = dict(model.named_modules())
    handles = [
        modules[layer].register_forward_hook(hook(parts, layer), with_kwargs=True)
        for layer, parts in watched.items()
    ]
    try:
        _call(model, example)
    finally:
        for handle in handles:
            handle.remove()


def _call(model: nn.Module, example: Any) -> None:
    try:
        if isinstance(example, Mapping):
            model(**example)
        elif isinstance(example, tuple):
            model(*example)
        else:
            model(example)
    except (
        RuntimeError,
        TypeError,
        IndexError,
        AttributeError,
        AssertionError,
    ) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"{type(model).__name__} cannot run on the example: {reason}; give one of the shape and type that it takes"
        ) from error


@contextlib.contextmanager
def _eval_without_fast_path(model: nn.Module) -> Iterator[None]:
    """In eval mode, and with attention computed layer by layer: its fast path calls no
    module.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with eval_mode(model):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def as_array(tensor: Tensor) -> Array:
    """float32 (float64 stays), without −0.0, which counts as zero."""
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return (tensor.detach().to(device="cpu", dtype=dtype) + 0.0).contiguous().numpy()
