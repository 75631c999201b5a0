"""`tersify.shrink`: structured zeros become really smaller layers.

small = tersify.shrink(model, example)
tersify.save(packed(small), "small.terse")
shapes = tersify.open("small.terse").shapes()
again = tersify.load("small.terse", into=fit_(MyNet(), shapes))
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tersify.modes import eval_mode, without_tf32
from tersify.shrinking.cutting import cut_
from tersify.shrinking.dead_units import Branch, Departures
from tersify.shrinking.scattering import can_scatter, scatter_
from tersify.shrinking.shrunk_files import carry_codes_, fit_, packed
from tersify.units.attention import HeadAttention
from tersify.units.trace import Example, call_arguments, trace

TOLERANCE = 1e-4
# of the coarsest type the network computes in: a product over fewer units is summed in
# another order
ROUNDINGS = 16


def shrink(model: nn.Module, example: Example) -> nn.Module:
    """A new network without the units that always give 0, or that nobody reads; same
    outputs, smaller layers.

    A unit is a filter, neuron or attention head with its bias and batch norm. Where
    units meet in an addition they go together; a layer that alone has lost some
    computes the others and puts zeros in their places. A unit that gives a constant
    goes where the next layer's bias can take it up. A layer that would lose all its
    units keeps one.

    Args:
        model: a network with structured zeros; it is not changed.
        example: what `model(example)` takes.
    """
    traced = trace(model, example)
    departures = Departures(traced, traced.tensors)
    gone = departures.settle()
    # The trace's copy of the model, with attention already split.
    small = traced.model
    branches = [
        b
        for b in departures.locally_dead(gone)
        if can_scatter(small.get_submodule(b.end))
    ]
    kept = departures.kept(gone)
    # Rows of zeros in channels that others need: computed rows are cut further, and
    # zeros are put in their places afterwards.
    for branch in branches:
        _keep_alive_rows(kept, small, branch)
    cut_(small, kept)
    for branch in branches:
        scatter_(small.get_submodule(branch.end), branch.source())
    _restore_whole_attention_(small, model)
    # Codes are cut like their weights. Only then the comparison, which sees the network
    # as the caller gets it.
    modes = {name: module.training for name, module in model.named_modules()}
    carry_codes_(small, model, kept)
    _check_same(model, small, example)
    for name, module in small.named_modules():
        module.training = modes.get(name, model.training)
    return small


def _keep_alive_rows(
    kept: dict[str, dict[int, Tensor]], small: nn.Module, branch: Branch
) -> None:
    # Rows of the original tensors: those that stay, and of these the computed ones. The
    # norm behind a layer is cut with it.
    rows = branch.stays[branch.alive]
    for name in {branch.layer, branch.end}:
        module = small.get_submodule(name)
        for part, tensor in (
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ):
            if tensor.dim() > 0:
                kept.setdefault(f"{name}.{part}", {})[0] = rows


def _restore_whole_attention_(small: nn.Module, model: nn.Module) -> None:
    """Attention that kept all its rows is nn.MultiheadAttention again, under its own
    names.
    """
    for name, module in list(small.named_modules()):
        if isinstance(module, HeadAttention):
            original = model.get_submodule(name)
            assert isinstance(original, nn.MultiheadAttention)
            # A scattering layer has another type, and a cut one another shape.
            whole = (original.embed_dim, original.embed_dim)
            layers = (module.q_proj, module.k_proj, module.v_proj, module.out_proj)
            if all(
                type(layer) is nn.Linear and layer.weight.shape == whole
                for layer in layers
            ) and not _scatters_beside(small.get_submodule(name.rpartition(".")[0])):
                small.set_submodule(name, module.merged(original))


def _scatters_beside(parent: nn.Module) -> bool:
    """Whether torch's fast path, which whole attention would open, reads the weights of
    a layer that scatters as if they were those of a plain one.
    """
    return isinstance(parent, nn.TransformerEncoderLayer) and any(
        type(layer) is not nn.Linear for layer in (parent.linear1, parent.linear2)
    )


@torch.no_grad()
def _check_same(model: nn.Module, small: nn.Module, example: Example) -> None:
    args, kwargs = call_arguments(example)
    # TF32 on a GPU rounds more than the tolerance allows.
    with eval_mode(model), without_tf32():
        wanted = tree_leaves(model(*args, **kwargs))
    try:
        with without_tf32():
            got = tree_leaves(small(*args, **kwargs))
    except RuntimeError as error:
        raise ValueError(
            f"{type(model).__name__} does not run with fewer units ({str(error).partition(chr(10))[0]}); its forward "
            "depends on their number, so prune other layers"
        ) from error
    for a, b in zip(wanted, got, strict=True):
        if isinstance(a, Tensor) and a.is_floating_point() and a.numel():
            _check_near(type(model).__name__, a, b, _tolerance(model, a))


def _tolerance(model: nn.Module, output: Tensor) -> float:
    # fp16 and bf16 round by 1e-3 and more, far beyond TOLERANCE.
    kinds = {
        tensor.dtype
        for tensor in (output, *model.parameters())
        if tensor.is_floating_point()
    }
    return max(TOLERANCE, *(ROUNDINGS * torch.finfo(kind).eps for kind in kinds))


def _check_near(name: str, wanted: Tensor, got: Tensor, tolerance: float) -> None:
    if wanted.isnan().any():
        raise ValueError(
            f"{name} gives NaN for the example, which cannot be compared; give another example"
        )
    wanted, got = wanted.cpu().double(), got.cpu().double()
    finite = wanted.isfinite()
    # Differences count relative to the largest output; 1e-3 keeps outputs that are all
    # about zero from being compared with nothing.
    largest = (
        wanted[finite].abs().amax().clamp(min=1e-3).item() if finite.any() else 1e-3
    )
    # Equal infinities would give NaN by subtraction. `not far <= tolerance` also
    # refuses a NaN.
    far = torch.where(wanted == got, 0.0, (wanted - got).abs()).amax().item() / largest
    if not far <= tolerance:
        raise ValueError(
            f"the shrunk {name} differs from the large one by {far:.1e} of the largest output (allowed: "
            f"{tolerance:.1e}); its forward must give the same for the same input and not depend on zeroed units"
        )


__all__ = ["fit_", "packed", "shrink"]
