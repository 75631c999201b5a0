"""`compile` for a module on a GPU: a copy that shares its tensors, with packed layers
where they are faster.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Mapping
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from tersify.modes import eval_mode, without_tf32
from tersify.runtime.check import difference
from tersify.runtime.gpu.choose import CannotPack, Seen, allowed_activations, chosen
from tersify.runtime.gpu.layer import PackedLinear, matrix_of
from tersify.runtime.gpu.measured import Measured, costs_of_this_gpu
from tersify.runtime.gpu.plan import Choice, GpuPlan
from tersify.runtime.gpu.products import BF16_PARTS, INT8
from tersify.runtime.inputs import Arguments, explained
from tersify.runtime.nested import leaves, tensors
from tersify.tensor.origin import origins_of

# Of a whole network whose layers have been checked one by one: errors of many layers
# add up, a wrong one shows.
WHOLE_TOLERANCES = {BF16_PARTS: 1e-3, "fp16": 5e-2, "bf16": 2e-1, INT8: 1.0}


class GpuModule(nn.Module):
    """Same arguments and results as the module it was compiled from, eval mode only, no
    gradients.
    """

    def __init__(self, network: nn.Module, plan: GpuPlan) -> None:
        super().__init__()
        self.network = network
        self.plan = plan
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.network(*args, **kwargs)

    def train(self, mode: bool = True) -> GpuModule:
        """It stays in eval mode."""
        super().train(False)
        return self

    def weight_bytes(self) -> int:
        """Bytes of the packed weights that the kernels read."""
        return sum(
            m.size_bytes()
            for m in self.network.modules()
            if isinstance(m, PackedLinear)
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        raise TypeError(
            "a compiled network is packed for this GPU and can be neither copied nor pickled; save the network it was "
            "compiled from, and compile that again"
        )


def compile_on_gpu(
    model: nn.Module,
    example: Arguments,
    *,
    precision: str,
    calibration: list[Arguments] | None,
    strict: bool,
    costs: Measured | None = None,
) -> GpuModule:
    """`costs`: where they are kept and who measures them; those of the example's GPU
    unless given.
    """
    device = tensors(example)[0].device
    costs = costs_of_this_gpu(device) if costs is None else costs
    with torch.no_grad(), eval_mode(model), without_tf32():
        for batch in calibration or []:
            _run(model, batch)
        seen, wanted = _seen_layers(model, example)
        packed, plan = _packed_layers(
            seen, precision, costs, int8=calibration is not None, strict=strict
        )
        costs.save()
        compiled = GpuModule(_copied(model, packed), plan)
        problem = disagreement(compiled, example, wanted)
        read = {
            one.name
            for one in seen
            if one.layer in packed and packed[one.layer].was_read
        }
        if read:  # a dense weight made at every call is no gain
            packed = {
                one.layer: packed[one.layer]
                for one in seen
                if one.layer in packed and one.name not in read
            }
            plan = _without(
                plan, read, "the network reads its weight besides calling it"
            )
            compiled = GpuModule(_copied(model, packed), plan)
            problem = disagreement(compiled, example, wanted)
        if problem:
            if strict:
                raise ValueError(f"the network with packed layers {problem}")
            warnings.warn(
                f"the network with packed layers {problem}; all of it runs in torch",
                RuntimeWarning,
                stacklevel=3,
            )
            compiled = left_to_torch(model, plan, "the whole network disagreed")
    if device.type == "cuda":
        # kernels read weights before what comes before them in the stream ends
        torch.cuda.synchronize(device)
    return compiled


def _run(model: nn.Module, arguments: Arguments) -> Any:
    args, kwargs = arguments
    try:
        return model(*args, **kwargs)
    except Exception as error:  # anybody's forward: what it raises is not known here
        raise explained(model, tensors((args, kwargs)), error) from error


def _seen_layers(model: nn.Module, example: Arguments) -> tuple[list[Seen], Any]:
    """Layers that the example runs through, with the first input of each, and what the
    module makes of it.

    A layer whose weight a forward reads without a call is not among them, nor one that
    somebody watches with a hook.
    """
    origins = origins_of(model)
    candidates = {
        name: module
        for name, module in model.named_modules()
        if matrix_of(module) is not None
        and not module._forward_hooks
        and not module._forward_pre_hooks
    }
    inputs: dict[str, Tensor] = {}
    handles = []
    for name, module in candidates.items():

        def note(_: nn.Module, given: tuple[Any, ...], name: str = name) -> None:
            if len(given) == 1 and isinstance(given[0], Tensor) and given[0].numel():
                inputs.setdefault(name, given[0].detach())

        handles.append(module.register_forward_pre_hook(note))
    try:
        wanted = _run(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return [
        Seen(
            name=name,
            layer=module,
            x=inputs[name],
            origin=origins.get(f"{name}.weight" if name else "weight"),
        )
        for name, module in candidates.items()
        if name in inputs
    ], wanted


def _packed_layers(
    seen: list[Seen], precision: str, costs: Measured, *, int8: bool, strict: bool
) -> tuple[dict[nn.Module, PackedLinear], GpuPlan]:
    packed, choices = {}, []
    for one in seen:
        try:
            layer, choice = chosen(
                one, allowed_activations(precision, one.x.dtype, int8=int8), costs
            )
            packed[one.layer] = layer
        except CannotPack as reason:
            choice = Choice(name=one.name, reason=str(reason))
            if reason.serious:
                if strict:
                    raise ValueError(f"{one.name}: {reason}") from None
                warnings.warn(
                    f"{one.name} runs in torch: {reason}", RuntimeWarning, stacklevel=4
                )
        choices.append(choice)
    return packed, GpuPlan(layers=tuple(choices))


def _copied(model: nn.Module, packed: Mapping[nn.Module, PackedLinear]) -> nn.Module:
    """Tensors are shared, packed layers take the place of theirs, everything else is
    copied.
    """
    memo: dict[int, Any] = {
        id(t): t for t in itertools.chain(model.parameters(), model.buffers())
    }
    memo |= {id(layer): swapped for layer, swapped in packed.items()}
    try:
        return copy.deepcopy(model, memo).eval()
    except Exception as error:  # anybody's attributes
        why = str(error).partition("\n")[0][:200]
        raise ValueError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {why}); compile a module that can"
        ) from error


def disagreement(compiled: GpuModule, example: Arguments, wanted: Any) -> str:
    """What is wrong with the whole network, against what its module made; empty where
    nothing is.
    """
    if not compiled.plan.packed:
        return ""
    args, kwargs = example
    tolerance = max(
        WHOLE_TOLERANCES[layer.activations] for layer in compiled.plan.packed
    )
    try:
        made = compiled(*args, **kwargs)
        apart = max(
            itertools.starmap(_apart, zip(leaves(made), leaves(wanted), strict=True)),
            default=0.0,
        )
    except Exception as error:
        # a forward that reads more of a layer than a packed one has
        return f"does not run ({type(error).__name__}: {str(error)[:200]})"
    return (
        ""
        if apart <= tolerance
        else f"differs from its module by {apart:.1e} of the largest number"
    )


def left_to_torch(model: nn.Module, plan: GpuPlan, reason: str) -> GpuModule:
    """A copy without packed layers."""
    names = {choice.name for choice in plan.packed}
    return GpuModule(_copied(model, {}), _without(plan, names, reason))


def _without(plan: GpuPlan, names: set[str], reason: str) -> GpuPlan:
    layers = (
        Choice(name=one.name, reason=reason) if one.name in names else one
        for one in plan.layers
    )
    return GpuPlan(layers=tuple(layers))


def _apart(made: Any, wanted: Any) -> float:
    if not isinstance(wanted, Tensor):
        return 0.0
    return difference(made, wanted) if isinstance(made, Tensor) else float("inf")
