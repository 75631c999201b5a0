"""The `.terse` file: entropy-coded, safe to open, and a valid safetensors file."""

from tersify.codec.errors import TerseFileError
from tersify.codec.inspection import inspect
from tersify.codec.reader import TerseFile, load, open
from tersify.codec.writer import save

__all__ = ["TerseFile", "TerseFileError", "inspect", "load", "open", "save"]
