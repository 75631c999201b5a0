"""Energy-based pruning: a population of sub-networks, searched while the network trains (paper 4)."""

from tersify.methods.energy.gates import full_network
from tersify.methods.energy.method import Energy

__all__ = ["Energy", "full_network"]
