"""A network as plain data: a graph of torch's own operations, which a file can hold and
nobody has to trust.
"""

from tersify.graph.graph_module import GraphNetwork, network_of
from tersify.graph.record import recorded

__all__ = ["GraphNetwork", "network_of", "recorded"]
