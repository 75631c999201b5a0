"""The classical coder of the Deep Compression benchmark, which must be a fair peer:
exact, and a real Huffman code.
"""

import itertools
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tersify import CompressedTensor

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from huffman import canonical, code_lengths, decode_codes, encode_tensor, relative

codes = st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3]), max_size=300)


@given(codes=codes, index_bits=st.integers(1, 8))
def test_the_codes_come_back_whatever_the_runs_of_zeros(codes, index_bits):
    flat = torch.tensor(codes, dtype=torch.uint8)
    tensor = CompressedTensor(
        shape=(len(codes),), codes=flat, codebook=torch.tensor([0.0, 1.0, -1.0, 2.0])
    )
    assert (
        decode_codes(encode_tensor(tensor, index_bits=index_bits), len(codes)).tolist()
        == codes
    )


@given(symbols=st.lists(st.integers(0, 20), min_size=1, max_size=200))
def test_code_lengths_are_within_a_bit_of_the_entropy_and_no_code_begins_another(
    symbols,
):
    lengths, counts = code_lengths(symbols), Counter(symbols)
    total = len(symbols)
    mean = sum(counts[s] * length for s, length in lengths.items()) / total
    entropy = -sum(n / total * math.log2(n / total) for n in counts.values())
    assert entropy - 1e-9 <= mean < entropy + 1 + 1e-9
    words = sorted(canonical(lengths).values())
    assert not any(b.startswith(a) for a, b in itertools.pairwise(words))


def test_a_run_too_long_for_the_index_is_broken_by_a_filler():
    flat = np.zeros(12, np.uint8)
    flat[10] = 3
    assert relative(flat, 3) == ([7, 2], [0, 3])
