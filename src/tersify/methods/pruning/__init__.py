"""Pruning: a score × a structure × a scope × a schedule, each in a file of its own."""

from tersify.methods.pruning.method import Prune

__all__ = ["Prune"]
