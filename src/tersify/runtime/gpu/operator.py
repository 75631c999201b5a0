"""`tersify::packed_linear`: a linear layer from packed weights as a torch operator, for graphs and for torch.compile.

Its arguments are tensors, numbers and words alone, so a graph that holds it can be traced, captured and exported.
On a GPU kernels run it, elsewhere the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tersify.runtime.gpu import driver
from tersify.runtime.gpu.dense import parts_reference
from tersify.runtime.gpu.packed import Packed
from tersify.runtime.gpu.products import BF16_PARTS, INT8, Settings, product
from tersify.runtime.gpu.rounding import reference as rounded

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_SCHEMA = (
    "packed_linear(Tensor x, Tensor data, Tensor? starts, Tensor? levels, Tensor? table, Tensor scale, Tensor? bias, "
    "str form, int rows, int features, str activations, int[] settings) -> Tensor"
)
_LIBRARY = torch.library.Library("tersify", "FRAGMENT")
_LIBRARY.define(_SCHEMA)


def reference(x: Tensor, packed: Packed, bias: Tensor | None, activations: str) -> Tensor:
    """In float64, on vectors rounded as the kernels round them: what every kernel is compared with."""
    flat = x.reshape(-1, packed.features)
    factors = packed.factors()
    if activations == INT8:
        steps = rounded(flat.float(), swapped=False)
        made = (steps.steps.double() @ factors.T) * steps.scale.double()[:, None]
    elif activations == BF16_PARTS:
        made = parts_reference(flat.float()).double().sum(0) @ factors.T
    else:
        made = flat.to(TYPES[activations]).double() @ factors.T
    made = made * packed.scale.double()
    return (made if bias is None else made + bias.double()).reshape(*x.shape[:-1], packed.rows)


def _packed(
    data: Tensor, starts: Tensor | None, levels: Tensor | None, scale: Tensor, form: str, rows: int, features: int
) -> Packed:
    return Packed(form=form, data=data, starts=starts, levels=levels, scale=scale, rows=rows, features=features)


def _in_torch(
    x: Tensor,
    data: Tensor,
    starts: Tensor | None,
    levels: Tensor | None,
    table: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    form: str,
    rows: int,
    features: int,
    activations: str,
    settings: list[int],
) -> Tensor:
    packed = _packed(data, starts, levels, scale, form, rows, features)
    return reference(x, packed, bias, activations).to(x.dtype)


def _on_gpu(
    x: Tensor,
    data: Tensor,
    starts: Tensor | None,
    levels: Tensor | None,
    table: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    form: str,
    rows: int,
    features: int,
    activations: str,
    settings: list[int],
) -> Tensor:
    packed = _packed(data, starts, levels, scale, form, rows, features)
    made = product(
        x.reshape(-1, features),
        packed,
        table,
        bias,
        activations,
        Settings.read(settings),
        lambda launch: driver.run(launch, x.device),
    )
    return made.view(*x.shape[:-1], rows)


def _fake(
    x: Tensor,
    data: Tensor,
    starts: Tensor | None,
    levels: Tensor | None,
    table: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    form: str,
    rows: int,
    features: int,
    activations: str,
    settings: list[int],
) -> Tensor:
    return x.new_empty(*x.shape[:-1], rows)


_LIBRARY.impl("packed_linear", _in_torch, "CPU")
_LIBRARY.impl("packed_linear", _on_gpu, "CUDA")
torch.library.register_fake("tersify::packed_linear", _fake, lib=_LIBRARY)
