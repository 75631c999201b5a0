"""Lists of the weights that are not zero hold every weight."""

from __future__ import annotations

import pytest
import torch

from tersify.runtime.gpu import sparse


def signs_of(rows: int, features: int, density: float) -> torch.Tensor:
    g = torch.Generator().manual_seed(rows + features)
    sign = 2 * torch.randint(0, 2, (rows, features), generator=g) - 1
    kept = torch.rand(rows, features, generator=g) < density
    return (sign * kept).to(torch.int8)


@pytest.mark.parametrize("density", [0.0, 0.001, 0.1, 1.0])
@pytest.mark.parametrize(("rows", "features"), [(1, 1), (5, 9), (33, 4096), (7, 14336)])
def test_what_is_packed_comes_back(rows: int, features: int, density: float) -> None:
    signs = signs_of(rows, features, density)
    assert torch.equal(sparse.unpack(sparse.pack(signs)), signs)


def test_two_weights_at_the_ends_of_a_row_take_few_bytes() -> None:
    signs = torch.zeros(32, 1000, dtype=torch.int8)
    signs[:, 0], signs[:, -1] = 1, -1
    lists = sparse.pack(signs)
    assert torch.equal(sparse.unpack(lists), signs)
    assert lists.data.nbytes == 32 * 32


def test_nine_zeros_in_ten_take_less_than_a_bit_a_weight() -> None:
    signs = signs_of(1024, 4096, 0.1)
    lists = sparse.pack(signs)
    assert 8 * (lists.data.nbytes + lists.starts.nbytes) < signs.numel()


def test_few_lanes_want_the_same_bank_at_once() -> None:
    lists = sparse.pack(signs_of(64, 4096, 0.1))
    slices = lists.slices
    starts, heads = lists.starts[: slices + 1].tolist(), lists.starts[slices + 1 :]
    first = (heads & ((1 << 18) - 1)).view(slices, sparse.LANES)
    most = []
    for home in range(slices):
        steps = lists.data[starts[home] : starts[home + 1]].transpose(0, 1)
        steps = steps.reshape(sparse.LANES, -1).view(torch.int8).long()
        words = (steps.cumsum(1) + first[home, :, None]) * sparse.UNIT // 4
        most += [
            int(torch.bincount(at.unique() % sparse.BANKS).max()) for at in words.T
        ]
    assert sum(most) / len(most) < 2.4  # 3.5 in rising order
