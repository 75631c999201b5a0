"""A capture repeats what the module does, or says in one sentence, with the user's
line, why it cannot.
"""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from captured import assert_like_the_module
from torch import Tensor, nn

from tersify.runtime import compile
from tersify.runtime.capture import capture

pytest.importorskip("tersify._runtime")
Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Made:
    features: Tensor
    name: str
    more: dict[str, Tensor] | None = None


class Does(nn.Module):
    """A linear layer, and a function of it and of the inputs."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.layer, self.does = nn.Linear(6, 5), forward

    def forward(self, *args, **kwargs):
        return self.does(self.layer, *args, **kwargs)


@pytest.mark.parametrize(
    "result",
    [
        lambda y, w: (y, None),
        lambda y, w: [y, 3, "name", 2.5, True],
        lambda y, w: {"a": y, "b": (y * 2, None)},
        lambda y, w: OrderedDict(b=y, a=y + 1),
        lambda y, w: Pair(y, [y.relu()]),
        lambda y, w: Made(y, "made", {"twice": y * 2}),
        lambda y, w: (w, y),
        lambda y, w: w,
        lambda y, w: (y, y),
        lambda y, w: (y, torch.arange(3), torch.float32, y.shape),
        lambda y, w: ((), [], {}, y),
        lambda y, w: y.topk(2),
        lambda y, w: y.max(1),
        lambda y, w: (y > 0).sum(),
    ],
)
def test_results_are_of_the_module_s_own_kind(result):
    assert_like_the_module(
        Does(lambda layer, x: result(layer(x), layer.weight)),
        torch.randn(4, 6),
        calls=2,
    )


def test_an_output_that_is_the_input_is_the_input():
    x = torch.randn(3, 6)
    made, same = compile(Does(lambda layer, x: (layer(x), x)), x)(x)
    assert torch.equal(same, x)
    assert made.shape == (3, 5)


@pytest.mark.parametrize(
    ("forward", "args", "named"),
    [
        (lambda layer, x, y: layer(x) + y, (torch.randn(2, 6), torch.randn(2, 5)), {}),
        (lambda layer, pair: layer(pair[0]) * pair[1], ((torch.randn(2, 6), 2.5),), {}),
        (
            lambda layer, d: layer(d["x"]) + (0 if d["y"] is None else d["y"]),
            ({"x": torch.randn(2, 6), "y": None},),
            {},
        ),
        (
            lambda layer, x, mask=None: layer(x) if mask is None else layer(x) * mask,
            (torch.randn(2, 6), None),
            {},
        ),
        (
            lambda layer, *, x, scale=1.0: layer(x) * scale,
            (),
            {"x": torch.randn(2, 6), "scale": 3.0},
        ),
        (lambda layer, made: layer(made.features), (Made(torch.randn(2, 6), "x"),), {}),
        (
            lambda layer, pair: layer(pair.left) + pair.right,
            (Pair(torch.randn(2, 6), torch.randn(5)),),
            {},
        ),
        (
            lambda layer, x, flip: layer(x.flip(0) if flip else x),
            (torch.randn(2, 6), True),
            {},
        ),
    ],
)
def test_inputs_may_be_nested_named_none_or_plain_data(forward, args, named):
    model = Does(forward).eval()
    fast = compile(model, named or args, threads=1)
    with torch.no_grad():
        assert torch.allclose(fast(*args, **named), model(*args, **named), atol=1e-6)


def test_plain_data_of_another_value_is_another_plan():
    model = Does(lambda layer, x, flip: layer(x.flip(0) if flip else x)).eval()
    x = torch.randn(2, 6)
    fast = compile(model, (x, True))
    with torch.no_grad():
        assert torch.allclose(fast(x, False), model(x, False), atol=1e-6)
        assert torch.allclose(fast(x, flip=True), model(x, True), atol=1e-6)


@pytest.mark.parametrize(
    "forward",
    [
        lambda layer, x: layer(x) if x.sum() > 0 else x[:, :5],
        lambda layer, x: layer(x) * float(x.max()),
        lambda layer, x: layer(x) + x.tolist()[0][0],
        lambda layer, x: layer(x) + int(x.argmax()),
        lambda layer, x: layer(x)[x[:, 0] > 0],
        lambda layer, x: layer(x[x[:, 0].nonzero()[:, 0]]),
        lambda layer, x: layer(x) + torch.from_numpy(x.numpy())[:, :5],
        lambda layer, x: layer(x.unique().repeat(6)[:6][None]),
        lambda layer, x: torch.masked_select(layer(x), x[:, :5] > 0),
    ],
)
def test_what_depends_on_numbers_of_the_input_is_refused_with_the_line(forward):
    with pytest.raises(ValueError, match=r"\(test_capture\.py, line \d+\); "):
        compile(Does(forward), torch.randn(4, 6))


def test_a_branch_on_sizes_is_taken_anew_for_every_size():
    model = Does(
        lambda layer, x: layer(x) if len(x) > 2 else layer(x).relu() + 1
    ).eval()
    fast = compile(model, torch.randn(4, 6))
    for n in (1, 2, 3, 9):
        x = torch.randn(n, 6)
        with torch.no_grad():
            assert torch.allclose(fast(x), model(x), atol=1e-6)


class Remembers(nn.Module):
    def forward(self, x):
        before = getattr(self, "last", torch.zeros(()))
        self.last = x.mean()
        return x + before


def test_an_attribute_set_at_every_call_is_refused_by_name():
    with pytest.raises(
        ValueError,
        match=r"^the forward of Remembers sets self\.last at every call; register it as a buffer",
    ):
        compile(Remembers(), torch.randn(2, 3))


def test_an_attribute_of_a_submodule_is_named_in_full():
    with pytest.raises(ValueError, match=r"sets self\.1\.last at every call"):
        compile(nn.Sequential(nn.Identity(), Remembers()), torch.randn(2, 3))


class Replaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


def test_a_buffer_that_is_replaced_is_refused_by_name_and_stays():
    model = Replaces().eval()
    with pytest.raises(
        ValueError, match=r"^the forward puts another tensor in the place of 'mean'"
    ):
        compile(model, torch.randn(2, 3))
    assert torch.equal(model.mean, torch.zeros(3))


class Caches(nn.Module):
    """Fills a table in its first run, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x):
        if self.table is None or len(self.table) < len(x):
            self.table = torch.arange(len(x), dtype=torch.float32)
        return x + self.table[: len(x), None]


def test_a_cache_that_the_first_run_fills_is_no_change():
    model = Caches()
    fast = compile(model, torch.randn(3, 2))
    for n in (3, 5, 2):
        x = torch.randn(n, 2)
        assert torch.equal(fast(x), Caches()(x))


@pytest.mark.parametrize(
    "forward",
    [
        lambda layer, x: F.dropout(layer(x), 0.5, training=True),
        lambda layer, x: layer(x) + torch.rand_like(x)[:, :5],
        lambda layer, x: layer(x) + torch.empty(5).normal_(),
        lambda layer, x: layer(x).uniform_(-1, 1),
        lambda layer, x: torch.bernoulli(layer(x).sigmoid()),
    ],
)
def test_random_operations_stay_random(forward):
    fast = compile(Does(forward), torch.randn(8, 6))
    x = torch.randn(8, 6)
    first, second = fast(x), fast(x)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    one = fast(x)
    torch.manual_seed(0)
    assert torch.equal(fast(x), one)


def test_random_tensors_that_depend_on_no_input_are_drawn_at_every_call():
    fast = compile(Does(lambda layer, x: layer(x) + torch.randn(5)), torch.randn(2, 6))
    x = torch.randn(2, 6)
    assert not torch.equal(fast(x), fast(x))


@pytest.mark.parametrize(
    "forward",
    [
        lambda layer, x: layer(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1),
        lambda layer, x: layer(x.reshape(-1, 6)).reshape(*x.shape[:2], 5),
        lambda layer, x: layer(x.transpose(0, 1)).transpose(0, 1),
        lambda layer, x: layer(x.permute(1, 0, 2).reshape(-1, 6)),
        lambda layer, x: layer(x[0]),
        lambda layer, x: layer(x[0, 0]),
        lambda layer, x: torch.stack([layer(frame) for frame in x.unbind(1)], 1),
    ],
)
def test_axes_folded_into_the_batch_and_inputs_without_one(forward):
    model = Does(forward).eval()
    fast = compile(model, torch.randn(2, 4, 6), threads=1)
    for shape in ((2, 4, 6), (5, 3, 6), (1, 1, 6)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert torch.allclose(fast(x), model(x), atol=1e-5)


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.AdaptiveAvgPool2d(1), (4, 6, 8)),
        (nn.AdaptiveAvgPool1d(2), (4, 8)),
        (nn.Conv2d(3, 4, 3), (3, 16, 16)),
        (nn.Conv1d(3, 4, 3), (3, 16)),
        (nn.MaxPool2d(2), (3, 8, 8)),
        (nn.Linear(8, 3), (8,)),
        (nn.BatchNorm1d(8), (3, 8)),
        (nn.LayerNorm(8), (8,)),
        (nn.Softmax(-1), (8,)),
    ],
)
def test_inputs_without_a_batch(model, shape):
    assert_like_the_module(model, torch.randn(shape))


def test_a_captured_module_is_left_as_it_was():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(2, 3, 8, 8)
    kept = x.clone()
    captured = capture(model, (x,), {})
    assert model.training
    assert all(module.training for module in model)
    assert torch.equal(x, kept)
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()
    )
    assert not captured.graph.state
    assert not captured.graph.random


def test_a_graph_holds_no_memory_of_the_example():
    captured = capture(nn.Linear(4, 3), (torch.randn(2, 4),), {})
    assert set(captured.graph.constants) == {"weight", "bias"}
    assert captured.graph.inputs == ("input",)
