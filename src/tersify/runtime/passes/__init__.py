"""Functions from plan to plan."""

from tersify.runtime.passes.choose import choose
from tersify.runtime.passes.fp16 import serves_fp16, with_fp16
from tersify.runtime.passes.fuse import fuse
from tersify.runtime.passes.quantize import with_code_convolutions, with_int8_kernels

__all__ = ["choose", "fuse", "serves_fp16", "with_code_convolutions", "with_fp16", "with_int8_kernels"]
