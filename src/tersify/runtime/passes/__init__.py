"""Functions from plan to plan."""

from tersify.runtime.passes.choose import choose, segment_gain
from tersify.runtime.passes.fp16 import serves_fp16, with_fp16
from tersify.runtime.passes.fuse import fuse
from tersify.runtime.passes.levels import (
    with_level_kernels,
    with_levels,
    with_levels_inside,
)
from tersify.runtime.passes.quantize import with_code_convolutions, with_int8_kernels
from tersify.runtime.passes.rms import with_rms_norms
from tersify.runtime.passes.shortcut import with_shortcuts_as_convolutions

__all__ = [
    "choose",
    "fuse",
    "segment_gain",
    "serves_fp16",
    "with_code_convolutions",
    "with_fp16",
    "with_int8_kernels",
    "with_level_kernels",
    "with_levels",
    "with_levels_inside",
    "with_rms_norms",
    "with_shortcuts_as_convolutions",
]
