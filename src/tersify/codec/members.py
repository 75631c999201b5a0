"""What lies where: which blocks of which parts a group holds, and where a part is found
in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import numpy as np

from tersify.codec.directory import Directory
from tersify.codec.entries import DTYPES, Entry, kind_of
from tersify.codec.errors import TerseFileError
from tersify.codec.layout import BLOCK_ELEMENTS, Box, blocks_of, count_blocks
from tersify.codec.native import Codes

Place = tuple[str, str, int]  # tensor, part ("codes" or a field), number of the block


@dataclass
class CodeGroup:
    holds: ClassVar = "codes"

    levels: int
    boxes: list[Box] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    @property
    def kind(self) -> int:
        return self.levels

    @property
    def sizes(self) -> list[int]:
        """Decoded bytes of each block: a code takes one."""
        return [box.elements for box in self.boxes]

    @property
    def elements(self) -> int:
        return sum(self.sizes)

    @property
    def decoded_bytes(self) -> int:
        return self.elements


@dataclass
class ArrayGroup:
    holds: ClassVar = "arrays"

    dtype: str
    arrays: list[tuple[str, int]] = field(default_factory=list)  # (kind, elements)
    places: list[Place] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.dtype

    @property
    def sizes(self) -> list[int]:
        """Decoded bytes of each block."""
        width = DTYPES[self.dtype].itemsize
        return [elements * width for _, elements in self.arrays]

    @property
    def elements(self) -> int:
        return sum(elements for _, elements in self.arrays)

    @property
    def decoded_bytes(self) -> int:
        return self.elements * DTYPES[self.dtype].itemsize


Group = TypeVar("Group", CodeGroup, ArrayGroup)


class Contents:
    """The groups of a file, and the bytes of every part inside the decoded groups."""

    def __init__(self, groups: dict[int, CodeGroup | ArrayGroup]) -> None:
        self._groups = groups
        self._spans: dict[Place, tuple[int, int, int]] = {}  # group, first byte, end
        for index, group in groups.items():
            at = 0
            for place, size in zip(group.places, group.sizes, strict=True):
                self._spans[place] = (index, at, at + size)
                at += size

    def group(self, index: int) -> CodeGroup | ArrayGroup:
        return self._groups[index]

    def all_groups(self) -> list[int]:
        return sorted(self._groups)

    def groups_of(self, entry: Entry) -> list[int]:
        return sorted(
            {span[0] for part in parts_of(entry) for span in self.spans(entry, part)}
        )

    def decoded_bytes(self, groups: list[int]) -> int:
        return sum(self._groups[index].decoded_bytes for index in groups)

    def take(
        self, decoded: dict[int, Codes], entry: Entry, part: str, *, copy: bool
    ) -> Codes:
        """The bytes of a part. A group that holds nothing else is handed over and
        leaves `decoded`.
        """
        pieces = []
        for group, begin, end in self.spans(entry, part):
            # Handed over without a copy, which halves the memory for a large tensor.
            alone = len(self._groups[group].places) == 1
            data = decoded.pop(group) if alone else decoded[group][begin:end]
            pieces.append(data.copy() if copy and not alone else data)
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)

    def spans(self, entry: Entry, part: str) -> list[tuple[int, int, int]]:
        """Per block of a part: its group, and its first and last byte in the decoded
        group.
        """
        return [
            self._spans[entry.name, part, block]
            for block in range(count_blocks(parts_of(entry)[part]))
        ]


def parts_of(entry: Entry) -> dict[str, Box]:
    """Every part of a tensor with its whole box."""
    codes = {"codes": entry.box} if entry.dense is None and entry.same is None else {}
    return codes | {part: stored.box for part, stored in entry.parts().items()}


def contents_of(directory: Directory) -> Contents:
    groups: dict[int, CodeGroup | ArrayGroup] = {}
    for entry in directory.entries:
        if "codes" in parts_of(entry):
            for block, box in enumerate(blocks_of(entry.box)):
                codes = _joined(
                    groups, entry.code_group + block, CodeGroup(entry.levels)
                )
                codes.boxes.append(box)
                codes.places.append((entry.name, "codes", block))
        for part, stored in entry.parts().items():
            for block, box in enumerate(blocks_of(stored.box)):
                arrays = _joined(groups, stored.group + block, ArrayGroup(stored.dtype))
                arrays.arrays.append((kind_of(part, entry.name), box.elements))
                arrays.places.append((entry.name, part, block))
    for index, group in groups.items():
        # A bound on the memory of one decoder, whatever the file claims.
        if group.elements > BLOCK_ELEMENTS:
            raise TerseFileError(
                f"group {index} holds {group.elements} elements, {BLOCK_ELEMENTS} are allowed"
            )
        if isinstance(group, ArrayGroup):
            _sort_by_kind(group)
    return Contents(groups)


def _joined(
    groups: dict[int, CodeGroup | ArrayGroup], index: int, fresh: Group
) -> Group:
    """The group of that number, which is `fresh` where there is none yet, and must hold
    the same kind of thing where there is one: a group has one decoder.
    """
    found = groups.setdefault(index, fresh)
    if not isinstance(found, type(fresh)) or found.kind != fresh.kind:
        raise TerseFileError(f"group {index} mixes {fresh.holds} of different kinds")
    return found


def _sort_by_kind(group: ArrayGroup) -> None:
    """As the writer sorts them; by bytes, since the order of text depends on the
    language of the reader. The sort is stable, so the order within a kind is the
    directory's.
    """
    names = [name.encode() for name, *_ in group.arrays]
    order = sorted(range(len(names)), key=names.__getitem__)
    group.arrays = [group.arrays[i] for i in order]
    group.places = [group.places[i] for i in order]
