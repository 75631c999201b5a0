"""Energy-based pruning: a population of sub-networks, searched while the network trains (paper 4)."""

from tersify.methods.energy.method import Energy

__all__ = ["Energy"]
