"""The runtime: compressed networks compiled to sparse CPU kernels."""

from typing import Any

from tersify.lazy_modules import submodule
from tersify.runtime.benchmark import BenchRow, bench, speedup
from tersify.runtime.compiled import CompiledModule
from tersify.runtime.compiling import compile
from tersify.runtime.op_profile import OpTime
from tersify.runtime.plan import Plan
from tersify.runtime.reference import run_reference

__all__ = [
    "BenchRow",
    "CompiledModule",
    "OpTime",
    "Plan",
    "bench",
    "compile",
    "run_reference",
    "speedup",
]


def __getattr__(name: str) -> Any:
    return submodule(__name__, name)
