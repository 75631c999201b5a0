"""torch.export without its remarks: where it does not follow a network it prints the
graph so far, pages of it.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def exported(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> torch.export.ExportedProgram:
    """What `torch.export.export` gives or raises, and nothing on the terminal."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return torch.export.export(
            model, args, None if kwargs is None else dict(kwargs), **options
        )


def told_by(error: Exception) -> str:
    """The first line of a message of torch's, which goes on for pages, with its kind."""
    line = str(error).strip().partition("\n")[0][:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
