"""Which tilings a kernel is tried with: the best of a sweep on an H200 for layers of
2560² to 14336 × 4096.
"""

from __future__ import annotations

from tersify.runtime.gpu.launch import Tiling

CLASSES = (1, 8, 16, 32)  # vectors of one launch, at most
_TILINGS = {  # by class: row warps, feature warps, row blocks, loads in flight (0: all)
    1: (
        (1, 8, 2, 0),
        (1, 16, 2, 0),
        (4, 4, 1, 0),
        (2, 2, 2, 0),
        (1, 16, 2, 2),
        (2, 8, 1, 0),
        (1, 16, 1, 0),
        (1, 16, 1, 2),
        (4, 4, 1, 3),
        (8, 4, 1, 2),
        (4, 4, 1, 4),
        (2, 4, 1, 4),
        (1, 8, 1, 4),
    ),
    8: ((2, 4, 1, 2), (1, 8, 4, 2), (1, 8, 1, 4)),
    16: ((1, 8, 4, 1), (1, 4, 1, 4), (2, 4, 2, 2)),
    32: ((1, 4, 2, 1), (2, 4, 2, 2), (2, 2, 2, 4)),
}
LIST_TILINGS = ((16, 8), (28, 4), (28, 8), (32, 4))  # warps, loads in flight


def class_of(vectors: int) -> int:
    """The place of the class in CLASSES."""
    return next(i for i, most in enumerate(CLASSES) if vectors <= most)


def tilings(vectors: int) -> tuple[Tiling, ...]:
    """The first is the best guess."""
    return tuple(
        Tiling(
            row_warps=row_warps,
            feature_warps=feature_warps,
            row_blocks=row_blocks,
            in_flight=in_flight,
        )
        for row_warps, feature_warps, row_blocks, in_flight in _TILINGS[
            CLASSES[class_of(vectors)]
        ]
    )
