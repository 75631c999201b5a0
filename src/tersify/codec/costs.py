"""What codes cost: bits of every symbol of a group, read from the stream that the coder
itself makes of it.

`priced` codes a network as `save` would. From each group's stream come the tables,
classes and contexts of docs/format.md, section 6, as tensors; with them codes that
differ a little can be priced without coding them anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tersify.codec.codes import Meaning
from tersify.codec.layout import Box
from tersify.codec.native import Codes, encode_rans
from tersify.codec.reference import exchanged, first_nonzero, read_model
from tersify.codec.writer import encoded
from tersify.tensor import CompressedTensor

BITS_OF_AN_UNSEEN_SYMBOL = 16.0  # a place in the table, then the rarest symbol there is
SCALE_BITS = 12  # widths sum to 4096


@dataclass(frozen=True, eq=False)
class Priced:
    """Blocks of codes with the tables they were coded with; `codec` and `size_bytes`
    are those of the file.
    """

    codec: str
    size_bytes: int
    levels: int
    boxes: Sequence[BoxPrices]


@dataclass(frozen=True, eq=False)
class BoxPrices:
    """One block of a tensor's codes."""

    name: str  # of the tensor
    begin: int  # its first code there
    box: Box
    levels: int
    arity: int
    has_left: bool
    has_above: bool
    classes: int
    bits: Tensor  # (contexts, symbols)
    class_of: Tensor  # (symbols,)
    density: Tensor  # (filters, units)
    mirrored: Tensor  # (symbols,)
    leads_with_two: Tensor  # (symbols,), nowhere true where symbols are not mirrored

    def to(self, device: torch.device) -> BoxPrices:
        moved: dict[str, Any] = {
            k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)
        }
        return replace(self, **moved)

    @property
    def up(self) -> int:
        return self.box.width if self.arity == 1 else 1

    def grid(self, codes: Tensor) -> Tensor:
        """Flat codes as (filters, units, rows, arity), filled up with code 0."""
        filters, channels, taps, _ = self.box
        run = channels if taps == 1 else taps
        lines = codes.reshape(-1, run).long()
        # A symbol holds `arity` codes; the last one of a run is filled up with zeros.
        missing = -run % self.arity
        lines = torch.nn.functional.pad(lines, (0, missing)) if missing else lines
        if taps == 1:
            return lines.reshape(filters, -1, 1, self.arity)
        return lines.reshape(filters, channels, -1, self.arity)

    def ungrid(self, grid: Tensor) -> Tensor:
        """The inverse of `grid`, for anything that is told of each code."""
        filters, channels, taps, _ = self.box
        run = channels if taps == 1 else taps
        return grid.reshape(filters * channels * taps // run, -1)[:, :run].reshape(-1)

    def symbols(self, grid: Tensor) -> Tensor:
        return (grid * self._places(grid.device)).sum(-1)

    def _places(self, device: torch.device) -> Tensor:
        return torch.tensor(
            [self.levels ** (self.arity - 1 - i) for i in range(self.arity)],
            device=device,
        )

    def price(self, symbols: Tensor) -> Tensor:
        """The bits of each symbol (filters, units, rows) behind its neighbours."""
        return self._price(
            symbols,
            self._before(symbols, 1, self.up),
            self._before(symbols, self.up, None),
        )

    def _before(self, symbols: Tensor, distance: int, period: int | None) -> Tensor:
        """The neighbour at that distance, −1 where it is missing."""
        found = torch.full_like(symbols, -1)
        found[..., distance:] = symbols[..., :-distance]
        if period is not None:
            # The first symbol of each kernel row has no left neighbour.
            found[..., ::period] = -1
        return found

    def of_unit(
        self, unit: int, symbols: Tensor, left: Tensor, above: Tensor
    ) -> Tensor:
        """The bits of symbols (…, filters) in one unit of every filter; −1 stands for a
        neighbour that is missing.
        """
        return self._bits(self.density[:, unit], symbols, left, above)

    def _price(self, symbols: Tensor, left: Tensor, above: Tensor) -> Tensor:
        density = self.density.reshape(*self.density.shape, *[1] * (symbols.ndim - 2))
        return self._bits(density, symbols, left, above)

    def _bits(
        self, context: Tensor, symbols: Tensor, left: Tensor, above: Tensor
    ) -> Tensor:
        # A context numbers (density, class of the left neighbour, class of the one
        # above), in the order that the decoder in `reference.decode_rans` uses.
        if self.has_left:
            context = context * (self.classes + 1) + self._class(left)
        if self.has_above:
            context = context * (self.classes + 1) + self._class(above)
            # Below a symbol whose first nonzero code is 2, a symbol is coded with signs
            # exchanged.
            turned = (above >= 0) & self.leads_with_two[above.clamp(min=0)]
            symbols = torch.where(turned, self.mirrored[symbols], symbols)
        return self.bits.view(-1)[context * self.bits.shape[1] + symbols]

    def _class(self, neighbour: Tensor) -> Tensor:
        return torch.where(
            neighbour >= 0, self.class_of[neighbour.clamp(min=0)], self.classes
        )

    def change(self, codes: Tensor, others: Tensor) -> Tensor:
        """For each flat code the bits that it would add if it alone became the other
        one.
        """
        grid, wanted = self.grid(codes), self.grid(others)
        symbols = self.symbols(grid)
        left, above = (
            self._before(symbols, 1, self.up),
            self._before(symbols, self.up, None),
        )
        now = self._price(symbols, left, above)
        # (…, rows, arity): the symbol if one of its codes changed, for each of its
        # codes.
        changed = symbols[..., None] + (wanted - grid) * self._places(grid.device)
        total = self._price(changed, left[..., None], above[..., None]) - now[..., None]
        rows = symbols.shape[-1]
        # the symbol to the right sees another neighbour
        if self.has_left and self.up > 1:
            has_right = (torch.arange(rows - 1, device=codes.device) + 1) % self.up != 0
            after = self._price(
                symbols[..., 1:, None], changed[..., :-1, :], above[..., 1:, None]
            )
            total[..., :-1, :] += torch.where(
                has_right[:, None], after - now[..., 1:, None], 0.0
            )
        # And the symbol below sees another neighbour above.
        if self.has_above and rows > self.up:
            below = self._price(
                symbols[..., self.up :, None],
                left[..., self.up :, None],
                changed[..., : -self.up, :],
            )
            total[..., : -self.up, :] += below - now[..., self.up :, None]
        return self.ungrid(total)

    def total_bits(self, codes: Tensor) -> Tensor:
        """Of all symbols, without the side information."""
        return self.price(self.symbols(self.grid(codes))).double().sum()


@dataclass(frozen=True, eq=False)
class PricedFile:
    """The file of a network, as large as `save` writes it, with what every symbol of
    its codes costs.
    """

    size_bytes: int
    groups: Sequence[Priced]

    def boxes_of(self, name: str, device: torch.device) -> list[BoxPrices]:
        return [
            box.to(device)
            for group in self.groups
            for box in group.boxes
            if box.name == name
        ]


def priced(model: Mapping[str, CompressedTensor | Tensor]) -> PricedFile:
    """Code the network once and read back what its symbols cost."""
    file = encoded(model)
    made = []
    for index, ((levels, pool), group) in enumerate(
        zip(file.contents, file.groups, strict=True)
    ):
        if not isinstance(levels, int):
            continue
        data = file.sections[f"g{index}"]
        codes = np.concatenate(pool.codes)
        stream = (
            data
            if group.codec == "rans"
            else _stream(codes, pool.boxes, levels, pool.meaning(levels))
        )
        boxes = _boxes(pool.names, pool.begins, pool.boxes, levels, stream, codes)
        made.append(Priced(group.codec, len(data), levels, boxes))
    return PricedFile(file.size_bytes, made)


def _stream(
    codes: Codes, boxes: Sequence[Box], levels: int, meaning: Meaning
) -> bytes | None:
    """The stream of another codec's codes: it tells nearly what they cost."""
    return encode_rans(codes, boxes, levels, meaning.activity, meaning.order)


def _boxes(
    names: Sequence[str],
    begins: Sequence[int],
    boxes: Sequence[Box],
    levels: int,
    stream: bytes | None,
    codes: Codes,
) -> list[BoxPrices]:
    if stream is None:
        return [
            _plain(name, begin, box, levels, codes)
            for name, begin, box in zip(names, begins, boxes, strict=True)
        ]
    model = read_model(stream, list(map(tuple, boxes)), levels)
    widths = torch.tensor(
        [model.tables[t].widths for t in model.table_of], dtype=torch.float32
    )
    # A symbol of width w out of 4096 costs 12 − log2 w bits.
    bits = torch.where(
        widths > 0, SCALE_BITS - widths.clamp(min=1).log2(), BITS_OF_AN_UNSEEN_SYMBOL
    )
    # A symbol is a number of `arity` digits to the base `levels`.
    symbols = levels**model.arity
    every = range(symbols)
    leads = [model.mirror and first_nonzero(s, model.arity) == 2 for s in every]
    turned = [exchanged(s, model.arity) if model.mirror else s for s in every]
    shared: dict[str, Any] = {
        "levels": levels,
        "arity": model.arity,
        "has_left": model.left,
        "has_above": model.above,
        "classes": model.classes,
        "bits": bits,
        "class_of": torch.tensor(model.class_of or [0] * symbols),
        "mirrored": torch.tensor(turned),
        "leads_with_two": torch.tensor(leads),
    }
    return [
        BoxPrices(
            name=name,
            begin=begin,
            box=box,
            density=torch.tensor(density).view(box.filters, -1),
            **shared,
        )
        for name, begin, box, density in zip(
            names, begins, boxes, model.densities, strict=True
        )
    ]


def _plain(name: str, begin: int, box: Box, levels: int, codes: Codes) -> BoxPrices:
    """Where the coder is missing: the code's own frequency."""
    counts = (
        torch.bincount(torch.from_numpy(codes).long(), minlength=levels)
        .clamp(min=1)
        .float()
    )
    every = torch.arange(levels)
    return BoxPrices(
        name=name,
        begin=begin,
        box=box,
        levels=levels,
        arity=1,
        has_left=False,
        has_above=False,
        classes=0,
        bits=(counts.sum().log2() - counts.log2())[None],
        class_of=torch.zeros_like(every),
        density=torch.zeros(
            box.filters, box.elements // box.filters // box.taps, dtype=torch.long
        ),
        mirrored=every,
        leads_with_two=torch.zeros(levels, dtype=torch.bool),
    )
