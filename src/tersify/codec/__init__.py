"""The `.terse` file: entropy-coded, safe to open, and a valid safetensors file."""

from tersify.codec.errors import TerseFileError
from tersify.codec.inspection import inspect
from tersify.codec.packing import pack
from tersify.codec.reader import DEFAULT_MAX_DECODED_BYTES, TerseFile, load, open
from tersify.codec.writer import save

__all__ = [
    "DEFAULT_MAX_DECODED_BYTES",
    "TerseFile",
    "TerseFileError",
    "inspect",
    "load",
    "open",
    "pack",
    "save",
]
