"""What a module takes and returns beyond tensors in a row: keywords, dicts, data
classes, None, buffers, numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from against_torch import check
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


@dataclass
class Batch:
    features: Tensor
    weights: Tensor | None = None


class Pair(NamedTuple):
    mean: Tensor
    spread: Tensor


class Owner(nn.Module):
    """A layer, a buffer and a parameter, and any function of them for a result."""

    def __init__(self, result: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("table", torch.randn(5))
        self.scale = nn.Parameter(torch.randn(3))
        self.result = result

    def forward(self, x: Tensor) -> Any:
        return self.result(self, self.linear(x))


OUTPUTS: dict[str, Callable[[Any, Tensor], Any]] = {
    "buffer": lambda m, y: m.table,
    "buffer_beside": lambda m, y: (y, m.table),
    "parameter": lambda m, y: m.scale,
    "parameter_beside": lambda m, y: {"y": y, "scale": m.scale},
    "weight_of_a_layer": lambda m, y: (y.relu(), m.linear.weight),
    "none": lambda m, y: None,
    "none_beside": lambda m, y: (y, None),
    "number": lambda m, y: (y, 7),
    "number_and_text": lambda m, y: {
        "y": y,
        "count": 3,
        "name": "logits",
        "share": 0.5,
    },
    "boolean": lambda m, y: [y, True],
    "same_twice": lambda m, y: (y, y),
    "view_of_another": lambda m, y: (y, y[:, 0]),
    "size": lambda m, y: (y, y.shape[1]),
    "nested": lambda m, y: {"a": [y, (y + 1, None)], "b": {"c": m.table * 2}},
    "data_class": lambda m, y: Batch(features=y, weights=y.softmax(-1)),
    "data_class_with_none": lambda m, y: Batch(features=y),
    "named_tuple": lambda m, y: Pair(y.mean(0), y.var(0, unbiased=False)),
    "constant": lambda m, y: (y, torch.arange(3)),
    "empty_tuple": lambda m, y: (y, ()),
    "integers": lambda m, y: y.argmax(-1),
    "booleans": lambda m, y: y > 0,
    "doubles": lambda m, y: y.double() * 2,
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_network_returns_what_its_module_returns(output):
    model = Owner(OUTPUTS[output]).eval()
    fast = compile(model, torch.randn(2, 4))
    for batch in (2, 1, 5):
        check(fast, model, torch.randn(batch, 4))


def test_an_input_handed_through_is_the_input_itself():
    model = Owner(lambda m, y: y).eval()
    model.forward = lambda x: (x, model.linear(x))
    x = torch.randn(2, 4)
    fast = compile(model, torch.randn(2, 4))
    assert fast(x)[0].data_ptr() == x.data_ptr()
    check(fast, model, x)


class Flexible(nn.Module):
    """One positional input, and others by keyword, absent or not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        *,
        scale: Any = None,
        negate: bool = False,
    ) -> Tensor:
        y = self.linear(x)
        if bias is not None:
            y = y + bias
        if scale is not None:
            y = y * scale
        return -y if negate else y


def test_keyword_inputs_are_taken_in_any_order():
    model = Flexible().eval()
    fast = compile(model, {"x": torch.randn(2, 4), "bias": torch.randn(2, 3)})
    for batch in (2, 5):
        check(fast, model, bias=torch.randn(batch, 3), x=torch.randn(batch, 4))
    check(fast, model, torch.randn(3, 4), bias=torch.randn(3, 3))
    check(fast, model, torch.randn(3, 4), torch.randn(3, 3))


def test_an_input_that_is_none_is_taken():
    model = Flexible().eval()
    fast = compile(model, (torch.randn(2, 4), None))
    for batch in (2, 3):
        check(fast, model, torch.randn(batch, 4), None)


@pytest.mark.parametrize(
    "other",
    [{}, {"bias": torch.ones(2, 3)}, {"scale": torch.ones(3)}, {"negate": True}],
)
def test_other_keywords_than_the_example_had_are_right_or_refused(other):
    model = Flexible().eval()
    fast = compile(model, {"x": torch.randn(2, 4), "scale": torch.randn(3)})
    try:
        check(fast, model, x=torch.randn(2, 4), **other)
    except ValueError as refusal:
        sentence = str(refusal)
    else:
        sentence = "right"
    assert sentence


@pytest.mark.parametrize(
    ("shown", "given"),
    [(2.0, 3.0), (2, 5), (2.0, torch.randn(3)), (torch.randn(3), 2.0)],
)
def test_a_number_is_not_kept_from_the_example_when_another_is_given(shown, given):
    model = Flexible().eval()
    fast = compile(model, {"x": torch.randn(2, 4), "scale": shown})
    try:
        check(fast, model, x=torch.randn(2, 4), scale=given)
    except ValueError as refusal:
        sentence = str(refusal)
    else:
        sentence = "right"
    assert sentence


class Structured(nn.Module):
    def __init__(self, read: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.read = read

    def forward(self, given: Any) -> Tensor:
        return self.linear(self.read(given))


INPUTS: dict[str, tuple[Callable[[Any], Tensor], Callable[[int], Any]]] = {
    "dict": (
        lambda g: g["a"] + g["b"],
        lambda n: {"a": torch.randn(n, 4), "b": torch.randn(n, 4)},
    ),
    "list": (lambda g: g[0] - g[1], lambda n: [torch.randn(n, 4), torch.randn(n, 4)]),
    "tuple_in_a_dict": (
        lambda g: g["a"][1],
        lambda n: {"a": (torch.randn(n), torch.randn(n, 4))},
    ),
    "data_class": (
        lambda g: g.features * g.weights,
        lambda n: Batch(torch.randn(n, 4), torch.randn(n, 1)),
    ),
    "data_class_with_none": (
        lambda g: g.features,
        lambda n: Batch(torch.randn(n, 4), None),
    ),
    "named_tuple": (
        lambda g: g.mean + g.spread,
        lambda n: Pair(torch.randn(n, 4), torch.randn(n, 4)),
    ),
    "list_with_none": (
        lambda g: g[0] if g[1] is None else g[1],
        lambda n: [torch.randn(n, 4), None],
    ),
    "dict_with_a_number": (
        lambda g: g["x"] * g["k"],
        lambda n: {"x": torch.randn(n, 4), "k": 3},
    ),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_a_network_takes_the_structures_its_module_takes(kind):
    read, inputs = INPUTS[kind]
    model = Structured(read).eval()
    fast = compile(model, (inputs(2),))
    for batch in (2, 1, 4):
        check(fast, model, inputs(batch))


class VectorWeight(nn.Module):
    """`F.linear` with a weight of one axis gives a number an item."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))
        self.bias = nn.Parameter(torch.randn(())) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 3, 6)])
def test_a_linear_layer_takes_a_weight_of_one_axis(shape, bias):
    model = VectorWeight(bias).eval()
    try:
        wanted = model(torch.randn(shape))
    except RuntimeError as unsupported:  # torch itself takes no bias for some ranks
        pytest.skip(str(unsupported).splitlines()[0])
    assert wanted.shape == shape[:-1]
    fast = compile(model, torch.randn(shape))
    check(fast, model, torch.randn(shape))


class Deciding(nn.Module):
    def __init__(self, decide: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.decide = decide

    def forward(self, x: Tensor) -> Tensor:
        return self.decide(self.linear(x))


DECISIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "branch_on_a_sum": lambda y: y + 1 if y.sum() > 0 else y - 1,
    "number_from_a_tensor": lambda y: y * y.max().item(),
    "rows_by_a_mask": lambda y: y[y > 0],
    "list_of_numbers": lambda y: torch.tensor(y[0].tolist()),
    "whole_from_a_tensor": lambda y: y[: int(y.abs().sum())],
    "nonzero": lambda y: y.nonzero(),
    "numpy": lambda y: torch.from_numpy(y.numpy() * 2),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_network_that_decides_by_values_is_refused_in_a_sentence(decision):
    model = Deciding(DECISIONS[decision]).eval()
    with pytest.raises(ValueError, match=r"\w+ \w+ \w+"):
        compile(model, torch.randn(3, 4))


def test_a_network_whose_kernels_agree_with_torch_compiles_strictly():
    model = nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6, 5)
    ).eval()
    fast = compile(model, torch.randn(2, 3, 8), strict=True)
    for batch in (2, 1, 5):
        check(fast, model, torch.randn(batch, 3, 8))
