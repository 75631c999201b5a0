"""The one error a `.terse` file can raise."""

from __future__ import annotations


class TerseFileError(ValueError):
    """The file is damaged, hostile, too new, or larger than the caller allows."""
