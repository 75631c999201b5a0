"""Energy-based pruning: a population of sub-networks, searched while the network trains
(paper 4).
"""

from tersify.methods.energy.energy import Energy
from tersify.methods.energy.gates import full_network

__all__ = ["Energy", "full_network"]
