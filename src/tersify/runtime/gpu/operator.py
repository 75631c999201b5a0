"""`tersify::packed_linear`: a linear layer from packed weights as a torch operator, for
graphs and for torch.compile.

Its arguments are tensors, numbers and words alone, so a graph that holds it can be
traced, captured and exported. On a GPU kernels run it, elsewhere the reference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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


def reference(
    x: Tensor, packed: Packed, bias: Tensor | None, activations: str
) -> Tensor:
    """In float64, on vectors rounded as the kernels round them: what every kernel is
    compared with.
    """
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
    return (made if bias is None else made + bias.double()).reshape(
        *x.shape[:-1], packed.rows
    )


class _Call(NamedTuple):
    """What follows the vectors in the schema, in its order."""

    data: Tensor
    starts: Tensor | None
    levels: Tensor | None
    table: Tensor | None
    scale: Tensor
    bias: Tensor | None
    form: str
    rows: int
    features: int
    activations: str
    settings: list[int]

    @property
    def packed(self) -> Packed:
        return Packed(
            form=self.form,
            data=self.data,
            starts=self.starts,
            levels=self.levels,
            scale=self.scale,
            rows=self.rows,
            features=self.features,
        )


def _in_torch(x: Tensor, *given: Any) -> Tensor:
    call = _Call(*given)
    return reference(x, call.packed, call.bias, call.activations).to(x.dtype)


def _on_gpu(x: Tensor, *given: Any) -> Tensor:
    call = _Call(*given)
    made = product(
        x.reshape(-1, call.features),
        call.packed,
        call.table,
        call.bias,
        call.activations,
        Settings.read(call.settings),
        lambda launch: driver.run(launch, x.device),
    )
    return made.view(*x.shape[:-1], call.rows)


def _fake(x: Tensor, *given: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], _Call(*given).rows)


_LIBRARY.impl("packed_linear", _in_torch, "CPU")
_LIBRARY.impl("packed_linear", _on_gpu, "CUDA")
torch.library.register_fake("tersify::packed_linear", _fake, lib=_LIBRARY)
