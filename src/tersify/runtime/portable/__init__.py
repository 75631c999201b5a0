"""A network lowered for every machine: what an engine is told, as plain data that a
file can hold.
"""

from tersify.runtime.portable.facts import described
from tersify.runtime.portable.lowering import lowered
from tersify.runtime.portable.program import Port, Program, read_program
from tersify.runtime.portable.replay import Replay

__all__ = ["Port", "Program", "Replay", "described", "lowered", "read_program"]
