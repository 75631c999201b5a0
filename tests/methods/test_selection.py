import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tersify.methods.pruning.choice import lowest
from tersify.methods.selection import kth_smallest

NUMBERS = st.floats(width=32, allow_nan=False)


@given(st.lists(NUMBERS, min_size=1, max_size=60), st.data())
def test_the_kth_smallest_is_that_of_the_sorted_numbers(numbers, data):
    k = data.draw(st.integers(1, len(numbers)))
    assert float(kth_smallest(torch.tensor(numbers), k)) == sorted(numbers)[k - 1]


def test_chunks_and_ties_do_not_matter(monkeypatch):
    monkeypatch.setattr("tersify.methods.selection.CHUNK", 7)
    numbers = torch.randn(100).mul(3).round()
    for k in (1, 13, 50, 100):
        assert kth_smallest(numbers, k) == numbers.kthvalue(k).values


@pytest.mark.parametrize("count", [0, 1, 500, 999, 1000])
def test_large_rows_lose_exactly_as_many_and_first_come_first_among_equals(count):
    scores = torch.randn(1, 1000).mul(4).round().abs()
    gone = lowest(scores, count)
    assert int(gone.sum()) == count
    order = sorted(range(1000), key=lambda i: (float(scores[0, i]), i))
    assert set(gone[0].nonzero()[:, 0].tolist()) == set(order[:count])
