"""The matrices of a network: linear layers, and embeddings, tied to the head or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tersify.tensor import CompressedTensor


@dataclass(frozen=True, eq=False)
class Matrix:
    """A weight whose rows are outputs and whose columns are inputs, and the modules
    that use it.

    Rows of an embedding are tokens, or what else a model looks up, such as places in
    the text. Where a head shares its weight, both modules are there.
    """

    name: str  # of the weight, the first of its names
    linear: nn.Module | None
    embedding: nn.Embedding | None
    # whether every row of the embedding counts alike: how often the calibration looked
    # it up says nothing, as of places that only a longer text has
    alike: bool = False

    @property
    def transposed(self) -> bool:
        """Conv1D of transformers keeps its weight as inputs × outputs."""
        return self.linear is not None and not isinstance(self.linear, nn.Linear)

    @property
    def parameter(self) -> Tensor:
        owner = self.embedding if self.linear is None else self.linear
        assert owner is not None
        assert isinstance(owner.weight, Tensor)
        return owner.weight

    @property
    def weight(self) -> Tensor:
        """Rows × columns."""
        weight = self.parameter.detach()
        return weight.T if self.transposed else weight

    def as_stored(self, packed: CompressedTensor) -> CompressedTensor:
        """A packed form of rows × columns, as the parameter has it."""
        if not self.transposed:
            return packed
        turned = {
            part: t if t is None else t.T.contiguous()
            for part, t in (
                ("codes", packed.codes),
                ("scale", packed.scale),
                ("column_scale", packed.column_scale),
            )
        }
        if packed.values is not None:
            dense = packed.to_dense().T.contiguous()
            turned["values"] = dense[dense != 0]
        return replace(packed, shape=packed.shape[::-1], **turned)  # type: ignore[arg-type]


def matrices_of(model: nn.Module) -> list[Matrix]:
    """Every matrix once, in the order of the modules."""
    found: dict[int, Matrix] = {}
    for prefix, module in model.named_modules():
        if _has_matrix(module):
            use = _use_in(module, f"{prefix}.weight" if prefix else "weight")
            known = found.get(id(use.parameter))
            found[id(use.parameter)] = use if known is None else _shared(known, use)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no linear layer or embedding to compress"
        )
    tokens = _token_embedding(model)
    if tokens is None:
        return list(found.values())
    return [
        replace(m, alike=m.linear is None and m.embedding is not tokens)
        for m in found.values()
    ]


def _use_in(module: nn.Module, name: str) -> Matrix:
    """The weight of one module, as if no other used it."""
    use = (
        Matrix(name, None, module)
        if isinstance(module, nn.Embedding)
        else Matrix(name, module, None)
    )
    if use.parameter.dtype != torch.float32:
        raise ValueError(
            f"'{name}' is {use.parameter.dtype}; compensation needs a network in float32: .float()"
        )
    return use


def _shared(known: Matrix, use: Matrix) -> Matrix:
    """One weight of an embedding and of the head: each may use it once, since
    compensation needs the inputs of one layer.
    """
    if (use.linear and known.linear) or (use.embedding and known.embedding):
        raise ValueError(
            f"{known.name!r} is the weight of several layers; compensation needs the inputs of one"
        )
    return replace(
        known,
        linear=known.linear or use.linear,
        embedding=known.embedding or use.embedding,
    )


def _token_embedding(model: nn.Module) -> nn.Module | None:
    """That of a model of transformers, which knows; None where nobody says."""
    try:
        found = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return None
    return found if isinstance(found, nn.Module) else None


def _has_matrix(module: nn.Module) -> bool:
    if isinstance(module, nn.Embedding):
        return module.embedding_dim > 1
    is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    return is_linear and isinstance(getattr(module, "weight", None), Tensor)


def in_parts(matrices: list[Matrix], limit_bytes: int) -> Iterator[list[Matrix]]:
    """Runs of matrices whose Hessians (columns², fp32) take at most so many bytes
    together, one matrix at least.
    """
    part: list[Matrix] = []
    taken = 0
    for matrix in matrices:
        size = 4 * matrix.weight.shape[1] ** 2
        if part and taken + size > limit_bytes:
            yield part
            part, taken = [], 0
        part.append(matrix)
        taken += size
    if part:
        yield part
