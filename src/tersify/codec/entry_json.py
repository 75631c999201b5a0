"""What the directory says about one tensor, checked in every number before anything
believes it.
"""

from __future__ import annotations

import math
from typing import Any

from tersify.codec.entries import DTYPES, PARTS, WHOLE, Entry, Stored
from tersify.codec.errors import TerseFileError
from tersify.codec.layout import Box, box_of, count_blocks
from tersify.codec.views import Same

MAX_DIMENSIONS = 32
MAX_ELEMENTS = 1 << 48
TURNED = [1, 0]  # the order of the axes of a matrix in its transpose
_COMPRESSED_KEYS = set("cbvmaf")
_WHOLE_DTYPES = ("F64", "F32", "F16", "BF16")  # those with every whole number to 128


def entry_to_json(entry: Entry) -> dict[str, Any]:
    made: dict[str, Any] = {"n": entry.name, "s": list(entry.shape)}
    if entry.same is not None:
        # Older readers refuse a list: they would not turn it.
        turned = [entry.same.name, *TURNED]
        return made | {"e": turned if entry.same.turned else entry.same.name}
    for part, stored in entry.parts().items():
        dtype = (
            stored.dtype
            if stored.dtype == stored.given
            else f"{stored.dtype}>{stored.given}"
        )
        # Sizes that follow from the tensor's shape and axis are left out: the directory
        # is a notable part of a small file.
        sizes = {"dense": (), "codebook": (entry.levels,)}.get(part, stored.shape)
        reference = [dtype, stored.group, *sizes]
        # a reader of 1.1 must not take the first scale for all of it
        if part == "column_scale":
            made["m"] = [made["m"], reference]
        else:
            made[PARTS[part]] = reference
    if entry.codebook is not None and entry.has_whole_levels:
        made["b"] = [entry.codebook.given, WHOLE, entry.levels]
    if entry.dense is None:
        made["c"] = entry.code_group
    if entry.axis is not None:
        made["a"] = entry.axis
    if entry.format:
        made["f"] = dict(entry.format)
    return made


def entry_from_json(item: Any, groups: int) -> Entry:
    plain = typed(item, dict, "a tensor")
    name = typed(plain.get("n"), str, "a tensor's name")
    shape = _shape(plain.get("s"), name)
    if "e" in plain:
        _require(
            not plain.keys() & {"d", *_COMPRESSED_KEYS},
            f"{name!r} equals another tensor and has parts of its own",
        )
        return Entry(name=name, shape=shape, same=_same(plain["e"], name))
    if "d" in plain:
        dtypes, group, sizes = _reference(plain["d"], name)
        _require(not sizes, f"{name!r} has a dense part with sizes")
        _require(
            not plain.keys() & _COMPRESSED_KEYS,
            f"{name!r} is dense and has keys of a compressed tensor",
        )
        return Entry(
            name=name, shape=shape, dense=_stored(dtypes, group, shape, groups, name)
        )
    code_group = typed(plain.get("c"), int, f"the codes of {name!r}")
    _check_groups(code_group, box_of(shape), groups, name)
    # Every later step indexes by these numbers, so each is checked here and nowhere
    # else.
    axis = plain.get("a")
    if axis is not None:
        _require(
            type(axis) is int and 0 <= axis < len(shape),
            f"{name!r} has axis {axis!r} and shape {shape}",
        )
    _require(
        ("b" in plain) != ("v" in plain),
        f"{name!r} needs a codebook or values, not both and not neither",
    )
    codebook = values = None
    if "b" in plain:
        dtypes, group, sizes = _reference(plain["b"], name)
        _require(
            len(sizes) == 1 and 1 <= sizes[0] <= 256,
            f"{name!r} has levels {sizes}, 1..256 are allowed",
        )
        # One row of levels for each slice of the axis; the file stores the number of
        # levels only.
        rows = () if axis is None else (shape[axis],)
        if group == WHOLE:
            _require(
                axis is None and dtypes in _WHOLE_DTYPES,
                f"{name!r} has whole numbers for levels and dtype {dtypes!r}, or an axis",
            )
            codebook = Stored(shape=sizes, dtype=dtypes, given=dtypes, group=WHOLE)
        else:
            codebook = _stored(dtypes, group, (*rows, *sizes), groups, name)
    else:
        dtypes, group, sizes = _reference(plain["v"], name)
        _require(
            len(sizes) == 1 and sizes[0] <= math.prod(shape),
            f"{name!r} has values {sizes} and shape {shape}",
        )
        values = _stored(dtypes, group, sizes, groups, name)
    scale, column_scale = _scales(plain.get("m"), name, shape, groups)
    facts = typed(plain.get("f", {}), dict, f"the format of {name!r}")
    _require(
        all(type(fact) is int for fact in facts.values()),
        f"the format of {name!r} must be whole numbers",
    )
    return Entry(
        name=name,
        shape=shape,
        code_group=code_group,
        codebook=codebook,
        values=values,
        scale=scale,
        column_scale=column_scale,
        axis=axis,
        format=facts,
    )


def _same(item: Any, name: str) -> Same:
    """A name, or of a transpose the name and the order of the other one's axes."""
    if not isinstance(item, list):
        return Same(name=typed(item, str, f"what {name!r} equals"))
    _require(item[1:] == TURNED, f"{name!r} equals a tensor in the order {item[1:]}")
    return Same(name=typed(item[0], str, f"what {name!r} equals"), turned=True)


def _scales(
    item: Any, name: str, shape: tuple[int, ...], groups: int
) -> tuple[Stored | None, Stored | None]:
    """`[dtype, group, *shape]` is one scale, and a list of two such lists two of them."""
    if item is None:
        return None, None
    # A single scale begins with a text, its dtype, so it is never a list of lists.
    two = (
        isinstance(item, list)
        and len(item) == 2
        and all(isinstance(each, list) for each in item)
    )
    made = []
    for each in item if two else [item]:
        dtypes, group, sizes = _reference(each, name)
        _require(
            _broadcasts(sizes, shape),
            f"{name!r} has a scale of shape {sizes} and shape {shape}",
        )
        made.append(_stored(dtypes, group, sizes, groups, name))
    return made[0], made[1] if two else None


def _reference(item: Any, name: str) -> tuple[str, int, tuple[int, ...]]:
    """`[dtype, group, *sizes]`."""
    listed = typed(item, list, f"a part of {name!r}")
    _require(len(listed) >= 2, f"a part of {name!r} needs a dtype and a group")
    dtypes = typed(listed[0], str, f"the dtype of {name!r}")
    return (
        dtypes,
        typed(listed[1], int, f"the group of {name!r}"),
        _shape(listed[2:], name),
    )


def _stored(
    dtypes: str, group: int, shape: tuple[int, ...], groups: int, name: str
) -> Stored:
    dtype, arrow, given = dtypes.partition(">")
    if not arrow:
        given = dtype
    if dtype not in DTYPES or given not in DTYPES:
        raise TerseFileError(
            f"{name!r} has the unknown dtype {dtypes!r}; a newer tersify may know it"
        )
    _require(
        # Without the zeros: a size of 0 would hide impossible others.
        math.prod(n for n in shape if n) <= MAX_ELEMENTS,
        f"{name!r} has a part of the shape {shape}",
    )
    stored = Stored(shape=shape, dtype=dtype, given=given, group=group)
    _check_groups(group, stored.box, groups, name)
    return stored


def _check_groups(first: int, box: Box, groups: int, name: str) -> None:
    blocks = count_blocks(box)
    _require(
        # All groups of the part must exist, so that later look-ups cannot fail.
        blocks == 0 or 0 <= first <= groups - blocks,
        f"{name!r} is in {blocks} groups from {first} on, the file has {groups}",
    )


def _shape(item: Any, name: str) -> tuple[int, ...]:
    sizes = typed(item, list, f"the shape of {name!r}")
    # `type(n) is int` refuses true and false, which Python counts as integers.
    fine = len(sizes) <= MAX_DIMENSIONS and all(
        type(n) is int and 0 <= n <= MAX_ELEMENTS for n in sizes
    )
    _require(
        fine and math.prod(n for n in sizes if n) <= MAX_ELEMENTS,
        f"{name!r} has an impossible shape",
    )
    return tuple(sizes)


def _broadcasts(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    if len(small) > len(large):
        return False
    return all(
        a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False)
    )


def _require(fine: bool, problem: str) -> None:
    if not fine:
        raise TerseFileError(problem)


def typed(item: Any, wanted: type, what: str) -> Any:
    # True is an int for Python and not for the format.
    if not isinstance(item, wanted) or (wanted is int and type(item) is bool):
        raise TerseFileError(
            f"{what} must be a {wanted.__name__}, got {type(item).__name__}"
        )
    return item
