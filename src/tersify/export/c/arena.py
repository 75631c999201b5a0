"""Where every buffer lies in the one arena: as long as somebody reads it, and no
longer.
"""

from __future__ import annotations

from tersify.export.c.c_steps import Buffer, Step, Steps

ALIGN = 8
# they read a summand where they then write
IN_PLACE = ("conv_i8", "conv_f32", "conv_codes", "elementwise")


def places(steps: Steps) -> tuple[dict[Buffer, int], int]:
    """The first byte of each buffer in the arena, and the arena's size."""
    outside = {buffer.memory for buffer in (*steps.inputs, *steps.outputs)}
    last = {
        buffer.memory: at
        for at, step in enumerate(steps.steps)
        for buffer in step.reads
    }
    found: dict[Buffer, int] = {}
    live: list[tuple[int, int, Buffer]] = []  # begin, end, whose
    size = 0
    for at, step in enumerate(steps.steps):
        made = step.writes.memory
        live = [one for one in live if last.get(one[2], -1) >= at]
        if made in outside or made in found:
            continue
        begin = _reused(step, at, last, found)
        if begin is None:
            begin = _gap(sorted((b, e) for b, e, _ in live), made.size_bytes)
        found[made] = begin
        live.append((begin, begin + made.size_bytes, made))
        size = max(size, begin + made.size_bytes)
    return found, size


def _reused(
    step: Step, at: int, last: dict[Buffer, int], found: dict[Buffer, int]
) -> int | None:
    """A summand that nobody reads later gives its place to the sum, number by number."""
    if step.kernel not in IN_PLACE or step.means or len(step.reads) < 2:
        return None
    other, made = step.reads[1].memory, step.writes.memory
    same = other in found and last[other] == at and other.size_bytes == made.size_bytes
    return found[other] if same and step.reads[0].memory is not other else None


def _gap(taken: list[tuple[int, int]], size: int) -> int:
    at = 0
    for begin, end in taken:
        if begin - at >= size:
            break
        at = max(at, -(-end // ALIGN) * ALIGN)
    return at
