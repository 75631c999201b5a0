"""torch.func inside a forward is captured; around a compiled network it is refused in
one sentence.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from against_torch import check
from torch import Tensor, nn

from tersify.runtime import compile
from tersify.runtime.capture.recorder import Recorder

pytest.importorskip("tersify._runtime")
# torch's own, in jvp
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


class Inside(nn.Module):
    def __init__(self, work: Callable[[Inside, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.work = work

    def forward(self, x: Tensor) -> Tensor:
        return self.work(self, x)


def rows_written(m: Inside, x: Tensor) -> Tensor:
    def row(r: Tensor) -> Tensor:
        made = m.linear(r)
        made[1:].mul_(2)
        return made.reshape(2, 2).flatten()

    return torch.vmap(row)(x)


INSIDE: dict[str, Callable[[Inside, Tensor], Tensor]] = {
    "vmap": lambda m, x: torch.vmap(m.linear)(x),
    "vmap_of_a_product": lambda m, x: torch.vmap(lambda r: r @ m.linear.weight)(x),
    "vmap_of_vmap": lambda m, x: torch.vmap(torch.vmap(lambda a: a.sin() * 2))(x),
    "vmap_with_writes": rows_written,
    "vmap_of_attention": lambda m, x: torch.vmap(
        lambda r: F.scaled_dot_product_attention(r[:, None], r[:, None], r[:, None])
    )(x),
    "grad": lambda m, x: torch.func.grad(lambda t: (m.linear(t) ** 2).sum())(x),
    "jvp": lambda m, x: torch.func.jvp(lambda t: m.linear(t).sin(), (x,), (x,))[1],
    "jacobian": lambda m, x: torch.func.jacrev(lambda t: m.linear(t).tanh())(x[0]),
    "functional_call": lambda m, x: torch.func.functional_call(
        m.linear, dict(m.linear.named_parameters()), (x,)
    ),
    "grads_of_rows": lambda m, x: torch.vmap(
        torch.func.grad(lambda r: m.linear(r).pow(2).sum())
    )(x),
}


@pytest.mark.parametrize("work", INSIDE)
def test_torch_func_inside_a_forward_is_captured(work):
    model = Inside(INSIDE[work]).eval()
    fast = compile(model, torch.randn(3, 4))
    for count in (3, 5):
        check(fast, model, torch.randn(count, 4))
    check(fast, model, torch.randn(4, 3).mT)


@pytest.mark.parametrize(
    "work",
    [
        lambda m, x: torch.func.grad(lambda t: (t.data * t).sum())(x),
        lambda m, x: torch.vmap(lambda r: r.data * 2)(x),
        lambda m, x: torch.func.grad(lambda t: t.sum() * t.detach().tolist()[0][0])(x),
    ],
)
def test_what_torch_func_hides_from_a_capture_is_refused_and_named(work):
    with pytest.raises(ValueError, match=r"test_found_transforms.py, line") as refusal:
        compile(Inside(work).eval(), torch.randn(3, 4))
    assert "does not take" not in str(refusal.value)


TRANSFORMS: dict[str, Callable[[nn.Module], object]] = {
    "vmap": lambda f: torch.vmap(f)(torch.randn(2, 3, 4)),
    "vmap_of_a_new_size": lambda f: torch.vmap(f)(torch.randn(2, 5, 4)),
    "vmap_by_keyword": lambda f: torch.vmap(lambda t: f(input=t))(torch.randn(2, 3, 4)),
    "grad": lambda f: torch.func.grad(lambda t: f(t).sum())(torch.randn(3, 4)),
    "jvp": lambda f: torch.func.jvp(f, (torch.randn(3, 4),), (torch.randn(3, 4),)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_torch_func_of_a_compiled_network_is_refused_in_one_sentence(transform):
    fast = compile(nn.Linear(4, 4).eval(), torch.randn(3, 4))
    with pytest.raises(ValueError, match=r"torch\.func"):
        TRANSFORMS[transform](fast)


def test_a_compiled_network_runs_on_plain_tensors_inside_a_transform():
    model = nn.Linear(4, 4).eval()
    fast = compile(model, torch.randn(3, 4))
    x = torch.randn(3, 4)
    made = torch.vmap(lambda t: t + fast(x))(torch.zeros(2, 3, 4))
    with torch.no_grad():
        assert torch.allclose(made, model(x).expand(2, 3, 4), atol=1e-5)


class Breaking(nn.Module):
    """Raises by itself, in a capture or not."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(7, 2)


def test_what_a_forward_raises_by_itself_is_still_the_inputs_fault():
    with pytest.raises(ValueError, match="does not take an input of 3×4"):
        compile(Breaking().eval(), torch.randn(3, 4))


class Unusual(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to_sparse().to_dense() * 2


def test_what_only_a_capture_raises_is_not_called_the_inputs_fault():
    with pytest.raises(
        ValueError, match=r"memory cannot be seen \(sparse_coo\) \(test_"
    ):
        compile(Unusual().eval(), torch.randn(3, 4))


def test_a_fault_of_the_record_itself_is_called_one(monkeypatch):
    def fails(*_):
        raise KeyError("lost")

    monkeypatch.setattr(Recorder, "_new_constant", fails)
    with pytest.raises(ValueError, match="Linear cannot be captured"):
        compile(nn.Linear(4, 4).eval(), torch.randn(3, 4))
