"""Why a forward cannot be captured, in one sentence that names the user's line."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import torch

_TORCH = Path(torch.__file__).parent
_OURS = Path(__file__).parent.parent


# files that look at what a forward did; the others call it
_RECORDS = ("recorder.py", "inplace.py", "shared_memory.py", "attributes.py")


class CannotCapture(ValueError):  # noqa: N818  (a refusal, not a fault)
    """The forward does something that no graph of operations can repeat."""


def refuse(what: str, remedy: str) -> CannotCapture:
    return CannotCapture(f"{what}{_user_line()}; {remedy}")


def is_ours(error: Exception) -> bool:
    """Whether the record raised it, and not the forward or what it called."""
    frames = [
        path
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if _OURS in (path := Path(frame.f_code.co_filename)).parents
    ]
    return bool(frames) and frames[-1].name in _RECORDS


def _user_line() -> str:
    """The innermost line that is neither torch's nor ours."""
    # From the innermost frame outwards, so the first line that is the user's is the one
    # that asked for the refused operation.
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        path = Path(frame.f_code.co_filename)
        if _TORCH not in path.parents and _OURS not in path.parents and path.exists():
            return f" ({path.name}, line {line})"
    return ""
