"""Forwards that draw random numbers: under one seed a compiled network draws what the
module draws, from its first call on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from against_torch import compare
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


class Drawing(nn.Module):
    def __init__(self, draw: Callable[[Drawing, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.draw = draw
        self.generator = torch.Generator().manual_seed(3)
        self.register_buffer("noise", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(self, self.linear(x))


def unused(m: Drawing, x: Tensor) -> Tensor:
    torch.rand(5)
    return x + torch.rand_like(x)


def into_a_buffer(m: Drawing, x: Tensor) -> Tensor:
    m.noise.normal_()
    return x * m.noise


DRAWS: dict[str, Callable[[Drawing, Tensor], Tensor]] = {
    "rand_like": lambda m, x: x + torch.rand_like(x),
    "dropout": lambda m, x: F.dropout(x, 0.5, training=True),
    "two_kinds": lambda m, x: torch.randn(x.shape) * x + torch.rand_like(x),
    "in_place": lambda m, x: x + torch.empty_like(x).uniform_(-1, 1),
    "bernoulli": lambda m, x: x * torch.bernoulli(torch.full_like(x, 0.4)),
    "bernoulli_in_place": lambda m, x: x * torch.empty_like(x).bernoulli_(0.3),
    "permutation": lambda m, x: x[torch.randperm(len(x))],
    "integers": lambda m, x: x * torch.randint(0, 9, (4,)),
    "multinomial": lambda m, x: torch.multinomial(x.softmax(-1), 2),
    "unused": unused,
    "attention": lambda m, x: F.scaled_dot_product_attention(
        x[None], x[None], x[None], dropout_p=0.3
    ),
    "rrelu": lambda m, x: F.rrelu(x, training=True),
    "alpha_dropout": lambda m, x: F.alpha_dropout(x, 0.5, training=True),
    "feature_dropout": lambda m, x: F.dropout1d(x, 0.5, training=True),
    "gumbel": lambda m, x: F.gumbel_softmax(x, hard=True),
    "into_a_buffer": into_a_buffer,
    "tensors_of_chances": lambda m, x: torch.normal(x, x.abs() + 1),
    "exponential": lambda m, x: x + torch.empty_like(x).exponential_(),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_the_first_call_of_a_size_draws_what_the_module_draws(draw):
    model = Drawing(DRAWS[draw]).eval()
    fast = compile(model, torch.randn(2, 4))
    with torch.no_grad():
        for length in (2, 2, 3, 3, 5, 2):
            x = torch.randn(length, 4)
            torch.manual_seed(length)
            wanted, after = model(x), torch.rand(3)
            torch.manual_seed(length)
            compare(fast(x), wanted)
            assert torch.equal(torch.rand(3), after), "other numbers follow"


@pytest.mark.parametrize("draw", ["rand_like", "into_a_buffer"])
def test_compile_draws_no_numbers(draw):
    model = Drawing(DRAWS[draw]).eval()
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    compile(
        model,
        torch.ones(2, 4),
        precision="auto",
        calibration=[torch.ones(3, 4)],
    )
    assert torch.equal(torch.rand(3), wanted)


def test_a_refused_size_draws_no_numbers():
    model = Drawing(DRAWS["rand_like"]).eval()
    fast = compile(model, torch.ones(2, 4))
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    with pytest.raises(ValueError, match="does not take"):
        fast(torch.ones(2, 5))
    assert torch.equal(torch.rand(3), wanted)


def test_a_generator_of_the_module_is_left_where_it_was():
    model = Drawing(lambda m, x: x + torch.rand(x.shape, generator=m.generator)).eval()
    fast = compile(model, torch.randn(2, 4))
    with torch.no_grad():
        for length in (2, 2, 3, 3):
            x = torch.randn(length, 4)
            model.generator.manual_seed(5)
            wanted = model(x)
            model.generator.manual_seed(5)
            compare(fast(x), wanted)
