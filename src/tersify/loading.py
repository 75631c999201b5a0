"""`load`: a network filled from a file, given by the caller or named by the file
itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar, overload

from torch import nn

from tersify import codec
from tersify.codec import DEFAULT_MAX_DECODED_BYTES

Module = TypeVar("Module", bound=nn.Module)


@overload
def load(
    path: str | os.PathLike[str],
    into: Module,
    *,
    max_decoded_bytes: int = ...,
    threads: int | None = ...,
) -> Module: ...
@overload
def load(
    path: str | os.PathLike[str], *, trust: bool = ..., max_decoded_bytes: int = ...
) -> nn.Module: ...


def load(
    path: str | os.PathLike[str],
    into: nn.Module | None = None,
    *,
    trust: bool = False,
    max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES,
    threads: int | None = None,
) -> nn.Module:
    """Fill a module with the file's weights, bit-equal, and leave the packed form on
    it.

    Args:
        path: the file.
        into: the module to fill. Without it the network, in eval mode, is what the file knows of it: a reference
            network, or the graph that `save` made of its `network`.
        trust: lets the file name code that runs here, too: a function in a file of yours, or a model of timm,
            torchvision or transformers.
        max_decoded_bytes: the most memory that the file may decode to.
        threads: how many threads decode it, as many as there are processors by default.
    """
    if into is not None:
        if trust:
            raise ValueError(
                "trust is for a network that the file names, and into gives one; leave one of them out"
            )
        return codec.load(
            path, into, max_decoded_bytes=max_decoded_bytes, threads=threads
        )
    if threads is not None:
        raise ValueError(
            "threads goes with into=; leave it out where the file names its network"
        )
    from tersify.lab.stored_networks import load_network

    return load_network(
        Path(path),
        trust=trust,
        max_decoded_bytes=max_decoded_bytes,
        remedy="give the network: load(path, into=MyNet())",
    )
