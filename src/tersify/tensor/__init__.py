"""What a weight became: the one value type that every method makes and everything else
consumes.
"""

from tersify.tensor.bit_packing import bits_for, bytes_for, pack_bits, unpack_bits
from tersify.tensor.compressed import CompressedTensor
from tersify.tensor.lookup_table import Table, TableFormat
from tersify.tensor.measures import (
    code_counts,
    entropy_bits,
    latent_histogram,
    sparsity_percent,
)
from tersify.tensor.model import CompressedModel

__all__ = [
    "CompressedModel",
    "CompressedTensor",
    "Table",
    "TableFormat",
    "bits_for",
    "bytes_for",
    "code_counts",
    "entropy_bits",
    "latent_histogram",
    "pack_bits",
    "sparsity_percent",
    "unpack_bits",
]
