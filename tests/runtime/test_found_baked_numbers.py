"""Numbers of an input that a forward turns into something else than tensors are no
constants: such a forward is refused, or computes them anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_torch import check
from torch import Tensor, nn

from tersify.runtime import compile
from tersify.runtime.capture import CannotCapture

pytest.importorskip("tersify._runtime")


class Reads(nn.Module):
    """A layer, and any function of what it makes and of what is given beside it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor, n: Any) -> Any:
        return self.function(self.layer(x), n)


def reads(function: Callable[..., Any]) -> nn.Module:
    return Reads(function).eval()


X = torch.randn(5, 4)
ONE, SOME = torch.tensor(3), torch.tensor([2, 3, 1])
MASK = torch.tensor([True, False, False, True])

BAKES: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "tensor": (lambda y, n: y * torch.tensor([n.max()]), SOME),
    "tensor_of_tensors": (lambda y, n: y * torch.tensor([[n, 1]]).sum(), ONE),
    "tensor_of_booleans": (
        lambda y, n: y * torch.tensor([n.any(), n.all()]).sum(),
        MASK,
    ),
    "as_tensor": (lambda y, n: y * torch.as_tensor([n]), ONE),
    "asarray": (lambda y, n: y * torch.asarray((n, n))[0], ONE),
    "new_tensor": (lambda y, n: y * y.new_tensor([n]), ONE),
    "new": (lambda y, n: y * y.new([n]), ONE),
    "Tensor": (lambda y, n: y * torch.Tensor([n]), ONE),
    "FloatTensor": (lambda y, n: y * torch.FloatTensor([n]), ONE),
    "LongTensor": (lambda y, n: y * torch.LongTensor([n]), ONE),
    "by_keyword": (lambda y, n: y * torch.tensor(data=[n]), ONE),
    "tensor_split": (lambda y, n: y.tensor_split(n)[0].sum(0), torch.tensor([2])),
    "tensor_split_by_keyword": (
        lambda y, n: torch.tensor_split(y, tensor_indices_or_sections=n)[0].sum(0),
        torch.tensor([2]),
    ),
    "text": (lambda y, n: y * (2 if str(n) == "tensor(3)" else 1), ONE),
    "length_of_text": (lambda y, n: y * len(f"{n}"), SOME),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", BAKES)
def test_a_forward_that_turns_numbers_into_constants_is_refused(how):
    function, n = BAKES[how]
    with pytest.raises(ValueError, match=r"numbers|size of a tensor depends"):
        compile(reads(function), (X, n))
    with pytest.raises(CannotCapture):
        compile(reads(lambda y, n: function(y, n) if len(y) > 4 else y), (X[:2], n))(
            X, n
        )


STAYS: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "literals": (lambda y, n: y * torch.tensor([2.0]) * y.new_tensor(3.0), ONE),
    "literals_beside": (lambda y, n: y * n * torch.as_tensor([1, 2, 3, 4]), ONE),
    "tensor_itself": (lambda y, n: y * torch.as_tensor(n) + torch.asarray(n), ONE),
    "stacked": (lambda y, n: y * torch.stack([n.max(), n.min()]).sum(), SOME),
    "split_at_numbers": (lambda y, n: y.tensor_split(2, dim=1)[0] * n, ONE),
    "parameter": (lambda y, n: y * nn.Parameter(y.detach() * 2), ONE),
    "uninitialised": (
        lambda y, n: y + torch.empty(4).fill_(1.0) + torch.empty_like(y).zero_() * n,
        ONE,
    ),
}


@pytest.mark.parametrize("how", STAYS)
def test_a_forward_that_only_computes_with_numbers_is_captured(how):
    function, n = STAYS[how]
    model = reads(function)
    fast = compile(model, (X, n))
    for other in (n, n + 1, n * 2):
        check(fast, model, torch.randn(5, 4), other)


@pytest.mark.parametrize(
    "n", [torch.tensor(3), torch.tensor([5, 5]), torch.tensor([False, False])]
)
def test_a_number_that_only_one_value_shows_is_found(n):
    """No function or operation of torch shows that it is read."""

    def function(y, n):
        capsule = torch.utils.dlpack.to_dlpack(n)
        return y * torch.utils.dlpack.from_dlpack(capsule).max()

    with pytest.raises(ValueError, match="other things for other numbers"):
        compile(reads(function), (X, n))


def test_integers_that_are_ids_may_not_change_freely_and_are_taken():
    model = nn.Sequential(nn.Embedding(1, 4), nn.Linear(4, 3)).eval()
    fast = compile(model, torch.zeros(2, 3, dtype=torch.int64))
    check(fast, model, torch.zeros(5, 3, dtype=torch.int64))
