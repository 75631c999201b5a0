"""The program: calls, weights by their place in the file, and numbers;
docs/reference/format.md, section 10.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from tersify.codec.container import parse_json
from tersify.codec.errors import TerseFileError
from tersify.codec.reader import TerseFile
from tersify.codec.writer import PLAN
from tersify.runtime.portable.sizes import Lengths, Sizes, evaluated

MAX_PLAN_BYTES = 1 << 26
PRECISIONS = ("fp32", "int8")
Numbers = npt.NDArray[np.float32]
Plain = list[Any]


class Vector(list[int]):
    """Where numbers lie: a list of begin and count that is known from others."""


class Place(int):
    """Where one number lies."""


@dataclass(frozen=True, kw_only=True)
class Port:
    """An input or output. A size of None is the batch, a dict a polynomial."""

    name: str
    shape: tuple[Any, ...]
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """What an engine is told. Without a `batch` any number of items may be asked for,
    and items count per batch, unless they are `absolute`. With a `length` any of those
    may be asked for. Then numbers may be polynomials of both.
    """

    precision: str
    batch: int | None
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: tuple[Plain, ...]
    calls: tuple[Plain, ...]
    numbers: Numbers
    labels: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    length: Lengths | None = None
    absolute: bool = False

    def to_bytes(self) -> bytes:
        """The section: one zstd frame with the length of the text, the text, and the
        numbers.
        """
        plain: dict[str, Any] = {
            "precision": self.precision,
            "batch": self.batch,
            "inputs": [[p.name, list(p.shape), p.dtype] for p in self.inputs],
            "outputs": [[p.name, list(p.shape), p.dtype] for p in self.outputs],
            "weights": list(self.weights),
            "calls": list(self.calls),
        }
        if self.absolute:
            plain["free"] = {"length": self.length}
        numbers = self.numbers
        if self.labels:
            plain["labels"] = list(self.labels)
        if self.mean:
            plain["image"] = [
                [len(numbers), len(self.mean)],
                [len(numbers) + len(self.mean), len(self.std)],
            ]
            numbers = np.concatenate(
                [numbers, np.array([*self.mean, *self.std], np.float32)]
            )
        text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        whole = struct.pack("<Q", len(text)) + text + numbers.astype("<f4").tobytes()
        if len(whole) > MAX_PLAN_BYTES:
            raise ValueError(
                f"the plan takes {len(whole):,} bytes, a .terse file allows {MAX_PLAN_BYTES:,}"
            )
        return zstandard.ZstdCompressor(level=19, write_checksum=True).compress(whole)


def read_program(file: TerseFile) -> Program:
    """The plan of an open file. What it says is checked by whoever runs it."""
    if PLAN not in file.section_names():
        raise ValueError("the file has no plan; `tersify plan FILE --out OUT` adds one")
    return program_of(file.section(PLAN))


def program_of(section: bytes) -> Program:
    whole = _unzipped(section)
    if len(whole) < 8:
        raise TerseFileError("the plan ends inside its first 8 bytes")
    (length,) = struct.unpack_from("<Q", whole)
    if length > len(whole) - 8 or (len(whole) - 8 - length) % 4:
        raise TerseFileError(
            f"the plan claims {length} bytes of text, and has {len(whole)} in all"
        )
    plain = parse_json(whole[8 : 8 + length], "plan")
    numbers = np.frombuffer(whole, "<f4", offset=8 + length).astype(np.float32)
    try:
        mean, std = (
            _vector(part, numbers) for part in plain.get("image", ([0, 0], [0, 0]))
        )
        batch, free = plain["batch"], plain.get("free")
        program = Program(
            precision=str(plain["precision"]),
            batch=None if batch is None else int(batch),
            inputs=tuple(map(_port, plain["inputs"])),
            outputs=tuple(map(_port, plain["outputs"])),
            weights=tuple(map(_listed, plain["weights"])),
            calls=tuple(map(_listed, plain["calls"])),
            numbers=numbers,
            labels=tuple(map(str, plain.get("labels", ()))),
            mean=mean,
            std=std,
            length=None if free is None else _lengths(free.get("length")),
            absolute=free is not None,
        )
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        IndexError,
    ) as problem:
        raise TerseFileError(
            f"the plan is not as docs/reference/format.md says: {problem!r}"
        ) from None
    if program.precision not in PRECISIONS:
        raise TerseFileError(
            f"the plan has the precision {program.precision!r}; a newer tersify may know it"
        )
    return program


def _unzipped(section: bytes) -> bytes:
    try:
        size = zstandard.frame_content_size(section)
        if not 0 <= size <= MAX_PLAN_BYTES:
            raise TerseFileError(
                f"the plan claims {size} bytes, {MAX_PLAN_BYTES} are allowed"
            )
        return zstandard.ZstdDecompressor().decompress(
            section, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as problem:
        raise TerseFileError(f"the plan cannot be unpacked: {problem}") from None


def _port(item: Any) -> Port:
    name, shape, dtype = item
    return Port(
        name=str(name),
        shape=tuple(n if n is None or isinstance(n, dict) else int(n) for n in shape),
        dtype=str(dtype),
    )


def _lengths(given: Any) -> Lengths | None:
    match given:
        case None:
            return None
        case [int(least), int(step), None | int() as most] if min(least, step) > 0:
            return Lengths(least, step, most)
    raise ValueError("lengths have a least, a step and perhaps a most, from 1")


def _listed(item: Any) -> Plain:
    if not isinstance(item, list) or not item or not isinstance(item[0], str):
        raise ValueError("a call and a weight are lists that begin with a name")
    return item


def _vector(part: Any, numbers: Numbers) -> tuple[float, ...]:
    return tuple(map(float, vector(part, numbers)))


def vector(part: Any, numbers: Numbers) -> Numbers:
    """`[begin, count]` of the numbers."""
    begin, count = part
    if (
        type(begin) not in (int, Place)
        or type(count) is not int
        or not 0 <= begin <= begin + count <= len(numbers)
    ):
        raise TerseFileError(
            f"the plan has {len(numbers)} numbers, one of its vectors is {part!r}"
        )
    return numbers[begin : begin + count]


def sizes_of(port: Port, sizes: Sizes) -> tuple[int, ...]:
    return tuple(
        sizes.batch if size is None else evaluated(size, sizes) for size in port.shape
    )
