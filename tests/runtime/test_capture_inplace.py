"""A forward that writes in place, through views of any kind, does the same when it is
compiled.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from captured import assert_like_the_module
from torch import nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Writes(nn.Module):
    """A layer, then what the test does to its result."""

    def __init__(self, write) -> None:
        super().__init__()
        self.conv, self.write = nn.Conv2d(3, 6, 3, padding=1), write

    def forward(self, x):
        y = self.conv(x)
        other = self.write(y)
        return y if other is None else (y, other)


def select(y):
    y[:, 0] = 0


def add_through_a_view(y):
    v = y[:, 0]
    v.add_(1)


def relu_through_a_view(y):
    y.view(y.shape[0], -1).relu_()


def relu_through_a_transpose(y):
    y.transpose(1, 3).relu_()


def through_two_views(y):
    a, b = y[:, 1:4], y[:, 3:]
    a.mul_(2)
    b.add_(a[:, :1])


def read_an_old_view_after_a_write(y):
    v = y[:, 0]
    y.mul_(3)
    return v + 1


def write_a_view_after_reading_it(y):
    v = y.flatten(1)
    w = v * 2
    v.clamp_(-0.1, 0.1)
    return w


def diagonal(y):
    y.diagonal(dim1=2, dim2=3).fill_(7.0)


def expand_then_write_the_base(y):
    v = y[:, :1].expand(-1, 3, -1, -1)
    y.neg_()
    return v * 2


def unfold(y):
    v = y.unfold(2, 2, 2)
    y.sub_(1)
    return v.sum(-1)


def split_and_write(y):
    a, b = y.split(3, 1)
    a.copy_(b)


def unbind_and_write(y):
    for i, part in enumerate(y.unbind(1)):
        part.mul_(i)


def index_put(y):
    y[:, torch.tensor([0, 2])] = 5.0


def masked_fill(y):
    y.masked_fill_(y > 0, -1.0)


def scatter(y):
    y.scatter_(1, torch.zeros_like(y, dtype=torch.int64)[:, :1], 9.0)


def as_strided(y):
    y.as_strided((2, 3), (1, 5), 4).add_(10)


def read_as_strided(y):
    return torch.as_strided(y, (4, 4), (2, 3), 1) * 2


def data(y):
    y.data.mul_(2)


def data_of_a_view(y):
    y[:, 1].data.zero_()


def out_argument(y):
    made = torch.empty_like(y)
    torch.mul(y, 2, out=made)
    return made


def out_is_the_input(y):
    torch.add(y, 1, out=y)


def squeeze_in_place(y):
    y.unsqueeze_(0).mul_(2)
    y.squeeze_(0)


def a_new_tensor_filled_in_parts(y):
    made = torch.zeros(y.shape[0], 12, *y.shape[2:])
    made[:, :6] = y
    made[:, 6:] = y.flip(1)
    return made


def a_constant_that_live_numbers_enter(y):
    kept = torch.ones(4)
    view = kept[1:3]
    kept[0] = y.mean()
    view.add_(1)
    return kept


def swap_of_halves(y):
    a, b = y[:, :3].clone(), y[:, 3:].clone()
    y[:, :3], y[:, 3:] = b, a


def another_type(y):
    counts = torch.zeros(y.shape[0], dtype=torch.int64)
    counts += (y > 0).sum((1, 2, 3))
    return counts


def in_place_of_another_type(y):
    y += y > 0


WRITES = [
    select,
    add_through_a_view,
    relu_through_a_view,
    relu_through_a_transpose,
    through_two_views,
    read_an_old_view_after_a_write,
    write_a_view_after_reading_it,
    diagonal,
    expand_then_write_the_base,
    unfold,
    split_and_write,
    unbind_and_write,
    index_put,
    masked_fill,
    scatter,
    as_strided,
    read_as_strided,
    data,
    data_of_a_view,
    out_argument,
    out_is_the_input,
    squeeze_in_place,
    a_new_tensor_filled_in_parts,
    a_constant_that_live_numbers_enter,
    swap_of_halves,
    another_type,
    in_place_of_another_type,
]


@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
def test_a_write_reaches_whoever_shares_the_memory(write):
    fast = assert_like_the_module(Writes(write), torch.randn(2, 3, 8, 8), calls=2)
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        wanted = Writes(write).eval()
        wanted.load_state_dict(fast._source[0].state_dict())
        found, expected = fast(x), wanted(x)
    for a, b in zip(
        *((r if isinstance(r, tuple) else (r,)) for r in (found, expected)), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    "change", [lambda x: x.mul_(2), lambda x: x[:, 0].zero_(), lambda x: x.t().add_(1)]
)
def test_a_forward_that_changes_its_input_changes_the_caller_s(change):
    class Changes(nn.Module):
        def forward(self, x):
            change(x)
            return x + 1

    assert_like_the_module(Changes(), torch.randn(4, 4))


def test_an_embedding_that_renormalises_its_rows_does_so():
    assert_like_the_module(
        nn.Embedding(9, 4, max_norm=0.5), torch.randint(0, 9, (3, 5))
    )


class Running(nn.Module):
    """A batch norm that uses and updates its statistics even in eval mode, by hand."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.conv = nn.Conv2d(3, 6, 3)

    def forward(self, x):
        y = self.conv(x)
        self.mean.mul_(0.9).add_(y.mean((0, 2, 3)), alpha=0.1)
        self.seen += 1
        return F.relu(y - self.mean[:, None, None]), self.seen


def test_buffers_that_the_forward_changes_go_on_from_call_to_call():
    assert_like_the_module(Running(), torch.randn(2, 3, 6, 6), calls=4)


def test_state_is_shared_by_all_sizes():
    model = Running().eval()
    fast = compile(model, torch.randn(2, 3, 6, 6), threads=1)
    for n in (1, 2, 5, 1):
        fast(torch.randn(n, 3, 6, 6))
    assert model.seen == 4


def test_a_parameter_that_the_forward_changes_is_state_too():
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x):
            self.weight.data.add_(1)
            return F.linear(x, self.weight)

    assert_like_the_module(Grows(), torch.randn(2, 4))
