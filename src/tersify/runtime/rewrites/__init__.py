"""Functions from graph to graph: the same results by calls that have kernels."""

from __future__ import annotations

from tersify.runtime.capture import Graph
from tersify.runtime.rewrites.attention_by_hand import with_attention
from tersify.runtime.rewrites.folded import with_folded_constants
from tersify.runtime.rewrites.joined_constants import with_margins
from tersify.runtime.rewrites.pieces import with_rolled_pieces, with_single_pieces

__all__ = ["rewritten"]


def rewritten(graph: Graph, kept: frozenset[str]) -> Graph:
    """`kept` are results whose calls stay as they are, because torch runs them."""
    graph = with_folded_constants(graph)
    graph = with_margins(with_rolled_pieces(graph, kept), kept)
    return with_attention(with_single_pieces(graph, kept), kept)
