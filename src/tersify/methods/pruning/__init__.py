"""Pruning: a score × a structure × a scope × a schedule, each in a file of its own."""

from tersify.methods.pruning.prune import Prune

__all__ = ["Prune"]
