"""The `rans` codec of docs/reference/format.md, section 6, in plain Python: slow, and
made to be read.

It follows the document sentence by sentence and shares nothing with the compiled
decoder, which the tests compare with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tersify.codec.errors import TerseFileError

BoxSizes = tuple[int, ...]  # filters, channels, taps, width


@dataclass(frozen=True)
class StreamModel:
    """What a stream says before its symbols: how codes form symbols, their contexts,
    and a table for each context.
    """

    lanes: int
    arity: int
    mirror: bool
    left: bool
    above: bool
    classes: int
    class_of: list[int]
    densities: list[list[int]]  # of the units of each box
    table_of: list[int]
    tables: list[Table]
    stream_at: int  # where the symbols begin

    @property
    def left_states(self) -> int:
        return self.classes + 1 if self.left else 1

    @property
    def above_states(self) -> int:
        return self.classes + 1 if self.above else 1


def read_model(data: bytes, boxes: Sequence[BoxSizes], levels: int) -> StreamModel:
    """Header and side information."""
    _must(len(data) >= 8, "a header of 8 bytes")
    lanes_log2, arity, flags, table_count = data[:4]
    side_bytes = int.from_bytes(data[4:8], "little")
    _must(lanes_log2 <= 5, "at most 32 lanes")
    _must(
        1 <= arity <= 8 and levels**arity <= 256,
        "symbols of 1 to 8 codes with at most 256 values",
    )
    _must(flags < 8, "known flags")
    _must(1 <= table_count <= 128, "1 to 128 tables")
    _must(side_bytes <= len(data) - 8, "side information inside the group")
    # Flags of the header, docs/reference/format.md, section 6.
    mirror, left, above = bool(flags & 1), bool(flags & 2), bool(flags & 4)
    _must(
        not mirror or (levels == 3 and above),
        "mirroring only for ternary codes with a row above",
    )
    symbols = levels**arity

    side = _Side(data[8 : 8 + side_bytes])
    classes, class_of = (
        _read_symbol_classes(side, symbols) if left or above else (0, [])
    )
    chances = _DensityChances()
    densities = [_read_densities(side, chances, box, arity) for box in boxes]
    # A missing neighbour is a class of its own, hence + 1.
    contexts = (classes + 1 if left else 1) * (classes + 1 if above else 1)
    table_of = _read_context_map(side, contexts, table_count)
    tables = _read_tables(side, table_count, symbols)
    # All words used and the state back at its start: any damage shows here.
    side.words.finish([side.state])
    return StreamModel(
        lanes=1 << lanes_log2,
        arity=arity,
        mirror=mirror,
        left=left,
        above=above,
        classes=classes,
        class_of=class_of,
        densities=densities,
        table_of=table_of,
        tables=tables,
        stream_at=8 + side_bytes,
    )


def decode_rans(data: bytes, boxes: Sequence[BoxSizes], levels: int) -> bytes:
    """One byte per code, box after box."""
    model = read_model(data, boxes, levels)
    arity, classes, class_of = model.arity, model.classes, model.class_of
    words = _Words(data[model.stream_at :])
    states = [words.state() for _ in range(model.lanes)]
    out = bytearray()
    for box, unit_density in zip(boxes, model.densities, strict=True):
        _, channels, taps, width = box
        rows = 1 if taps == 1 else -(-taps // arity)
        # The symbol above lies one kernel row back; where a symbol holds several codes,
        # one symbol back.
        up = width if arity == 1 else 1
        units: list[list[int]] = [[] for _ in unit_density]
        # Lanes interleave: each unit of a run has its own state, and rows advance in
        # lockstep, so that SIMD decoders can work on all of them.
        for first in range(0, len(units), len(states)):
            run = range(first, min(first + len(states), len(units)))
            for row in range(rows):
                for lane, unit in enumerate(run):
                    done = units[unit]
                    # At a border the neighbour is missing, which is a class of its own,
                    # number `classes`.
                    has_left, has_above = row % up != 0, row >= up
                    left_class = (
                        (class_of[done[row - 1]] if has_left else classes)
                        if model.left
                        else 0
                    )
                    above_class = (
                        (class_of[done[row - up]] if has_above else classes)
                        if model.above
                        else 0
                    )
                    context = (
                        unit_density[unit] * model.left_states + left_class
                    ) * model.above_states + above_class
                    symbol, states[lane] = model.tables[model.table_of[context]].read(
                        states[lane], words
                    )
                    if (
                        model.mirror
                        and has_above
                        and first_nonzero(done[row - up], arity) == 2
                    ):
                        symbol = exchanged(symbol, arity)
                    done.append(symbol)
        _append_codes(out, units, levels, arity, run=channels if taps == 1 else taps)
    words.finish(states)
    return bytes(out)


def _must(fine: bool, what: str) -> None:
    if not fine:
        raise TerseFileError(f"a damaged stream: it must have {what}")


class _Words:
    """Words of 16 bits, front to back."""

    def __init__(self, data: bytes) -> None:
        _must(len(data) % 2 == 0, "whole words")
        self._data, self._at = data, 0

    def next(self) -> int:
        _must(self._at < len(self._data), "another word")
        self._at += 2
        return int.from_bytes(self._data[self._at - 2 : self._at], "little")

    def state(self) -> int:
        low = self.next()
        state = low + (self.next() << 16)
        _must(state >= 1 << 16, "states of at least 65536")
        return state

    def finish(self, states: list[int]) -> None:
        _must(self._at == len(self._data), "no word left at its end")
        _must(
            all(state == 1 << 16 for state in states), "every state at 65536 in the end"
        )


def _advance(state: int, begin: int, width: int, words: _Words) -> int:
    # The decoding step of range ANS with 12-bit tables: the state's low 12 bits named a
    # slot of the symbol, which has `width` slots from `begin` on. Below 2^16 a word of
    # 16 bits is shifted in.
    state = width * (state // 4096) + state % 4096 - begin
    return state if state >= 1 << 16 else (state << 16) + words.next()


class _Side:
    """Binary decisions with chances that learn."""

    def __init__(self, data: bytes) -> None:
        self.words = _Words(data)
        self.state = self.words.state()

    def decision(self, chances: list[int], number: int) -> int:
        p = chances[number]
        if self.state % 4096 < p:
            self.state = _advance(self.state, 0, p, self.words)
            # Adaptive binary model: a chance moves one sixteenth of the way to what was
            # seen.
            chances[number] += (4096 - p) // 16
            return 0
        self.state = _advance(self.state, p, 4096 - p, self.words)
        chances[number] -= p // 16
        return 1

    def tree(self, chances: list[int]) -> int:
        # A binary tree in a heap: node n has the children 2n and 2n + 1, and leaves
        # follow.
        node = 1
        while node < len(chances):
            node = 2 * node + self.decision(chances, node)
        return node - len(chances)


def _chances(count: int) -> list[int]:
    return [2048] * count


def _read_symbol_classes(side: _Side, symbols: int) -> tuple[int, list[int]]:
    classes = side.tree(_chances(16)) + 1
    shared = _chances(16)
    class_of = [side.tree(shared) for _ in range(symbols)]
    _must(max(class_of) < classes, "known classes only")
    return classes, class_of


class _DensityChances:
    """Shared by all boxes."""

    def __init__(self) -> None:
        self.offset = _chances(16)
        self.there = _chances(2)
        self.classes = [_chances(16) for _ in range(6)]


def _read_densities(
    side: _Side, chances: _DensityChances, box: BoxSizes, arity: int
) -> list[int]:
    """The density of every unit of one box."""
    filters, channels, taps, _ = box
    units = -(-channels // arity) if taps == 1 else channels
    offset = side.tree(chances.offset)
    there = [side.decision(chances.there, 0), side.decision(chances.there, 1)]
    along = []
    for axis, count in enumerate((filters, units)):
        # 8 is the middle of the 16 density classes; how far the one before lies from it
        # picks the model of the next.
        previous, made = 8, []
        for _ in range(count if there[axis] else 0):
            previous = side.tree(chances.classes[3 * axis + min(2, abs(previous - 8))])
            made.append(previous)
        along.append(made or [8] * count)
    # Filters and channels each have a density around 8, so 16 is subtracted from their
    # sum.
    return [min(max(f + c + offset - 16, 0), 15) for f in along[0] for c in along[1]]


def _read_context_map(side: _Side, per_density: int, table_count: int) -> list[int]:
    table_of: list[int] = []
    right, numbers = _chances(2), _chances(128)
    before = 1
    for context in range(16 * per_density):
        # The prediction: the table of the same neighbours at the density class before.
        table = table_of[context - per_density] if context >= per_density else 0
        if table_count > 1:
            before = side.decision(right, before)
            if not before:
                table = side.tree(numbers)
                _must(table < table_count, "known tables only")
        table_of.append(table)
    return table_of


class Table:
    """Widths, and for each of the 4096 slots the symbol it belongs to."""

    def __init__(self, weights: list[int]) -> None:
        total = sum(weights)
        _must(total > 0, "a weight in each table")
        self.widths = [
            max(1, (4096 * w + total // 2) // total) if w else 0 for w in weights
        ]
        # Rounded widths may miss 4096 in either direction. The widest symbol takes the
        # difference, at most half of its width at a time, so that none falls to zero.
        while (missing := 4096 - sum(self.widths)) != 0:
            first = self.widths.index(max(self.widths))
            self.widths[first] += (
                missing if missing > 0 else -min(-missing, self.widths[first] // 2)
            )
        self.begins = [sum(self.widths[:s]) for s in range(len(weights))]
        self.symbol_of_slot = [
            s for s, width in enumerate(self.widths) for _ in range(width)
        ]

    def read(self, state: int, words: _Words) -> tuple[int, int]:
        symbol = self.symbol_of_slot[state % 4096]
        return symbol, _advance(state, self.begins[symbol], self.widths[symbol], words)


def _read_tables(side: _Side, table_count: int, symbols: int) -> list[Table]:
    lengths = [_chances(16) for _ in range(16)]
    next_bits = _chances(2)
    before = [0] * symbols
    tables = []
    for _ in range(table_count):
        weights = []
        for symbol in range(symbols):
            bits = side.tree(lengths[before[symbol]])
            before[symbol] = bits
            weight = 1 << (bits - 1) if bits else 0
            # A weight has its length and its two bits behind the leading one; that is
            # enough for a table of 4096 slots.
            for number in range(min(2, max(0, bits - 1))):
                weight |= side.decision(next_bits, number) << (bits - 2 - number)
            weights.append(weight)
        tables.append(Table(weights))
    return tables


def _digits(symbol: int, base: int, arity: int) -> list[int]:
    return [symbol // base ** (arity - 1 - i) % base for i in range(arity)]


def first_nonzero(symbol: int, arity: int) -> int:
    return next((code for code in _digits(symbol, 3, arity) if code), 0)


def exchanged(symbol: int, arity: int) -> int:
    made = 0
    for code in _digits(symbol, 3, arity):
        # Ternary codes 1 and 2 are +1 and −1: mirroring exchanges the signs.
        made = 3 * made + (0, 2, 1)[code]
    return made


def _append_codes(
    out: bytearray, units: list[list[int]], levels: int, arity: int, run: int
) -> None:
    """Symbols to codes; what lies beyond a run (a filter or a kernel) is padding and
    must be zero.
    """
    symbols = [symbol for unit in units for symbol in unit]
    step = -(-run // arity)
    for first in range(0, len(symbols), step):
        codes = [
            c for s in symbols[first : first + step] for c in _digits(s, levels, arity)
        ]
        _must(not any(codes[run:]), "only zeros as padding")
        out += bytes(codes[:run])
