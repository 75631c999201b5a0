"""What goes into a network when nobody gives a batch: random inputs of the size that it
takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tersify import codec
from tersify.graph import GraphNetwork
from tersify.lab.stored_networks import load_network
from tersify.tensor.model import GRAPH

TOKENS = 32
# numbers in one input: a file from elsewhere must not choose how much memory is taken
MAX_INPUT = 1 << 26


def network_and_input(
    file: Path,
    *,
    target: str | None = None,
    options: Mapping[str, Any] | None = None,
    trust: bool = False,
    shape: str | None = None,
    batch: int,
    max_decoded_bytes: int = codec.DEFAULT_MAX_DECODED_BYTES,
) -> tuple[nn.Module, Tensor]:
    """The network of a .terse file in eval mode, and `batch` random inputs of the size
    that it takes.
    """
    net = load_network(
        file,
        target=target,
        options=options,
        trust=trust,
        max_decoded_bytes=max_decoded_bytes,
    )
    metadata = codec.open(file, max_decoded_bytes=max_decoded_bytes).metadata
    stored = metadata.get("input")
    if stored is None and target is None and GRAPH in metadata:
        stored = _input_of_graph(metadata[GRAPH])
    words = (
        _words_of_graph(metadata[GRAPH], net) if isinstance(net, GraphNetwork) else None
    )
    return net, random_input(net, stored, shape, batch, words=words)


def _input_of_graph(graph: Any) -> list[int] | None:
    """The size of one input where the graph takes a single tensor of floats, or of
    words, and leaves no size but the batch free.
    """
    match graph:
        case {"inputs": [[_, [_, *sizes], "float32" | "int64"]]} if sizes and all(
            type(size) is int for size in sizes
        ):
            return sizes
    return None


def _words_of_graph(graph: Any, net: nn.Module) -> int | None:
    """How many words the table has in which the graph looks up its only input."""
    match graph:
        case {"inputs": [[tokens, _, "int64"]], "nodes": nodes}:
            state = net.state_dict()
            looked_up = [
                state.get(arguments[0]["value"].removeprefix("state."))
                for _, operation, arguments, _ in nodes
                if operation == "aten.embedding.default"
                and arguments[1] == {"value": tokens}
            ]
            return min((len(t) for t in looked_up if t is not None), default=None)
    return None


def random_input(
    net: nn.Module,
    stored: Any,
    shape: str | None,
    batch: int,
    *,
    other: str = "",
    words: int | None = None,
) -> Tensor:
    """`batch` inputs, always the same: token numbers where the network looks them up,
    else normal numbers.

    One has the size of the flag `shape`, else the `stored` one of its file, else what
    the network itself says; `other` is a flag of the command that would do instead.
    `words` is how many tokens there are, where the network's modules do not tell.
    """
    generator = torch.Generator().manual_seed(0)
    table = next(
        (module for module in net.modules() if isinstance(module, nn.Embedding)), None
    )
    if table is not None:
        words = table.num_embeddings
    if stored is None:
        stored = _own_shape(net, is_text=words is not None)
    if stored is None and shape is None:
        raise ValueError(
            f"what goes into the network is not known; give {other}--shape such as 3,32,32"
        )
    sizes = checked_shape(stored, shape)
    if words is not None and len(sizes) == 1:
        lowest = min(1, words - 1)  # 0 is what texts are padded with
        return torch.randint(lowest, words, (batch, *sizes), generator=generator)
    return torch.randn(batch, *sizes, generator=generator)


def _own_shape(net: nn.Module, *, is_text: bool) -> list[int] | None:
    """What the network says of its input; texts may have any length, so one is taken."""
    own = getattr(net, "input_shape", None)
    if isinstance(own, (list, tuple)):
        return list(own)
    return [TOKENS] if is_text else None


def checked_shape(stored: Any, shape: str | None) -> tuple[int, ...]:
    """What the flag says, or what was stored; neither may ask for too much."""
    if shape is not None:
        try:
            stored = list(map(int, shape.split(",")))
        except ValueError:
            raise ValueError(
                f"--shape takes the size of one input such as 3,32,32, got {shape!r}"
            ) from None
    fits = isinstance(stored, list) and all(type(n) is int and n > 0 for n in stored)
    # A hostile file must not choose how much memory is taken.
    if not fits or math.prod(stored) > MAX_INPUT:
        raise ValueError(
            f"one input has the size {stored!r}; --shape takes whole numbers such as 3,32,32"
        )
    return tuple(stored)
