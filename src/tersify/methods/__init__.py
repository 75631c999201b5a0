"""One file or folder per method family. A new method is a new file and one line here."""

from tersify.methods.base import Bound, Method, Network, Site, Step, Transform
from tersify.methods.binary import BinaryConnect
from tersify.methods.bitnet import BitNet
from tersify.methods.ec2t import EntropyConstrainedTernary
from tersify.methods.energy import Energy
from tersify.methods.kmeans import KMeans
from tersify.methods.lookup import Lookup
from tersify.methods.method_settings import nearest
from tersify.methods.pruning import Prune
from tersify.methods.rate import Rate
from tersify.methods.registry import from_table, register, registered
from tersify.methods.ternary import Ternary
from tersify.methods.ternary_target import TernaryTarget
from tersify.methods.trq import TernaryResidual
from tersify.methods.ttq import TrainedTernary
from tersify.methods.twn import TernaryWeightNetwork
from tersify.methods.uniform import Uniform

__all__ = [
    "BinaryConnect",
    "BitNet",
    "Bound",
    "Energy",
    "EntropyConstrainedTernary",
    "KMeans",
    "Lookup",
    "Method",
    "Network",
    "Prune",
    "Rate",
    "Site",
    "Step",
    "Ternary",
    "TernaryResidual",
    "TernaryTarget",
    "TernaryWeightNetwork",
    "TrainedTernary",
    "Transform",
    "Uniform",
    "from_table",
    "nearest",
    "register",
    "registered",
]
