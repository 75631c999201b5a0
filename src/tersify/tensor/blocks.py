"""Matrices whose scale changes every few columns, as files of llama.cpp hold them.

Such a matrix is stored as a CompressedTensor of rows × blocks × columns of a block, and
what is added to each block, where there is such a thing, as a tensor of its own. The
metadata name these matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from tersify.tensor.compressed import CompressedTensor
from tersify.tensor.model import CompressedModel

METADATA = "blocks"  # the names of such matrices
ADDED = ".added"  # behind the name: what is added to each block


def block_names(metadata: Mapping[str, Any]) -> set[str]:
    """The names of such matrices that the metadata tell of, which may be anybody's."""
    told = metadata.get(METADATA)
    return {n for n in told if isinstance(n, str)} if isinstance(told, list) else set()


def joined_shapes(
    shapes: Mapping[str, tuple[int, ...]],
    aliases: Mapping[str, str],
    metadata: Mapping[str, Any],
) -> dict[str, tuple[int, ...]]:
    """The shape under every name, with these matrices joined; checked, since a file may
    be anybody's.
    """
    blocks = block_names(metadata)
    for name in sorted(blocks & shapes.keys()):
        wanted = (*shapes[name][:2], 1)
        found = shapes.get(name + ADDED, wanted)
        if found != wanted:
            raise ValueError(
                f"'{name}{ADDED}' has shape {found}, and the blocks of {name!r} need {wanted}"
            )
    hidden = {name + ADDED for name in blocks}
    return {
        name: (shape[0], shape[1] * shape[2])
        if aliases.get(name, name) in blocks and len(shape) == 3
        else shape
        for name, shape in shapes.items()
        if name not in hidden
    }


def shapes_of(tensors: Any) -> dict[str, tuple[int, ...]]:
    """The shape under every name, as an opened file tells it, or those of tensors that
    are there.
    """
    if hasattr(tensors, "shapes"):
        return dict(tensors.shapes())
    own = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    aliases = getattr(tensors, "aliases", {})
    return own | {alias: own[name] for alias, name in aliases.items()}


class Joined(Mapping[str, "CompressedTensor | Tensor"]):
    """A file or a packed model with these matrices joined: dense, rows × columns."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._blocks = block_names(model.metadata)
        self._hidden = {name + ADDED for name in self._blocks}
        self.aliases, self.metadata = model.aliases, model.metadata

    def blocks(self, name: str) -> tuple[CompressedTensor, Tensor | None] | None:
        """The blocks of a matrix and what is added to each; None for another tensor."""
        name = self.aliases.get(name, name)
        # Before it is read, which takes time: whoever gets None reads it himself.
        if name not in self._blocks:
            return None
        found = self._model[name]
        if not isinstance(found, CompressedTensor) or len(found.shape) != 3:
            return None
        if name + ADDED not in self._model:
            return found, None
        added = self._model[name + ADDED]
        return found, added.to_dense() if isinstance(added, CompressedTensor) else added

    def __getitem__(self, name: str) -> CompressedTensor | Tensor:
        blocks = self.blocks(name)
        if blocks is None:
            found: CompressedTensor | Tensor = self._model[self.aliases.get(name, name)]
            return found
        dense, added = blocks[0].to_dense(), blocks[1]
        return (dense if added is None else dense + added).flatten(1)

    def __contains__(self, name: object) -> bool:
        return name not in self._hidden and (
            name in self._model or name in self.aliases
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape under every name; nothing of a file is decoded."""
        return joined_shapes(shapes_of(self._model), self.aliases, self.metadata)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._model if name not in self._hidden)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def joined(model: Any) -> CompressedModel:
    """All of it, in memory."""
    whole = Joined(model)
    return CompressedModel(
        dict(whole),
        aliases=model.aliases,
        recipe=model.recipe,
        metadata=dict(model.metadata),
    )
