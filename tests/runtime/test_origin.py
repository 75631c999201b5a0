"""The packed form is a hint of where a parameter came from; the live tensor always
decides.
"""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from tersify.runtime import compile
from tersify.runtime.weights import WeightKind
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.model import load_state
from tersify.tensor.origin import origins_of, set_origins

pytest.importorskip("tersify._runtime")
pytestmark = pytest.mark.usefixtures("kernels_win")
LEVELS = torch.tensor([0.0, -1.0, 0.5, 2.0])


def packed(rows=8, features=6, seed=0) -> CompressedTensor:
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 4, (rows, features), dtype=torch.uint8, generator=g)
    scale = torch.rand(rows, 1, generator=g) + 0.5
    return CompressedTensor(
        shape=(rows, features), codes=codes, codebook=LEVELS, scale=scale
    )


def loaded() -> nn.Sequential:
    model = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 6, bias=False)
    )
    forms = {"0.weight": packed(), "2.weight": packed(6, 8, seed=1)}
    return load_state(CompressedModel(forms), into=model).eval()


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + x


def row_scaled(fast) -> list[bool]:
    """Which layers know their table and one scale a row, which the numbers alone do not
    show.
    """
    weights = [node.op.weight for node in fast.plan.nodes if hasattr(node.op, "weight")]
    return [w.kind is WeightKind.TABLE and w.row_scale is not None for w in weights]


def right(fast, model) -> bool:
    x = torch.randn(3, 6)
    with torch.no_grad():
        wanted = model(x)
        return bool((fast(x) - wanted).abs().max() <= 2e-5 * wanted.abs().max())


@pytest.mark.parametrize(
    "keep",
    [
        lambda m: m,
        Wrapped,
        lambda m: nn.Sequential(m, nn.Identity()),
        copy.deepcopy,
        lambda m: Wrapped(copy.deepcopy(m)),
        lambda m: m[:],
    ],
    ids=["itself", "wrapped", "in a sequence", "copied", "a wrapped copy", "a slice"],
)
def test_wrappers_and_copies_keep_the_packed_form(keep):
    model = keep(loaded()).eval()
    fast = compile(model, torch.randn(2, 6), threads=1)
    assert row_scaled(fast) == [True, True]
    assert right(fast, model)


def test_a_submodule_keeps_the_packed_form():
    part = loaded()[0]
    assert row_scaled(compile(part, torch.randn(2, 6), threads=1)) == [True]


def fine_tuned(m):
    with torch.no_grad():
        m[0].weight.add_(0.01 * torch.randn(8, 6))


def edits_one_weight(m):
    m[0].weight.data[3, 2] += 1


def loads_others(m):
    m.load_state_dict({name: torch.randn_like(t) for name, t in m.state_dict().items()})


def replaces_the_parameter(m):
    m[0].weight = nn.Parameter(torch.randn(8, 6))


def replaces_the_layer(m):
    m[0] = nn.Linear(6, 8, bias=False)


def swaps_rows(m):
    m[0].weight.data = m[0].weight.data.flip(0)


def exchanges_layers(m):
    other = loaded()
    with torch.no_grad():
        m[0].weight.copy_(other[2].weight.T)


def prunes(m):
    m[0].weight.data *= (torch.rand(8, 6) < 0.5).float()


EDITS = [
    fine_tuned,
    edits_one_weight,
    loads_others,
    replaces_the_parameter,
    replaces_the_layer,
    swaps_rows,
    exchanges_layers,
    prunes,
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_weights_edited_after_loading_are_those_that_run(edit, precision):
    model = loaded()
    edit(model)
    assert right(
        compile(model, torch.randn(2, 6), threads=1, precision=precision), model
    )


@pytest.mark.parametrize("edit", EDITS, ids=lambda f: f.__name__)
def test_an_edit_after_compiling_is_refused_at_a_new_size(edit):
    model = loaded()
    fast = compile(model, torch.randn(2, 6), threads=1)
    edit(model)
    with pytest.raises(
        ValueError,
        match=r"'0\.weight' was changed after the network was compiled; compile",
    ):
        fast(torch.randn(3, 6))


def test_without_an_edit_new_sizes_are_fine_whatever_reads_the_module():
    model = loaded()
    fast = compile(model, torch.randn(2, 6), threads=1)
    model.train()
    model.state_dict()
    model.requires_grad_(False)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    assert right(fast, model)


def test_a_saved_module_neither_grows_nor_names_our_classes():
    plain = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 6, bias=False)
    ).eval()
    sizes = []
    for model in (plain, loaded()):
        file = io.BytesIO()
        torch.save(model, file)
        sizes.append(len(file.getvalue()))
        assert b"tersify.tensor" not in file.getvalue()
        assert b"CompressedTensor" not in file.getvalue()
    assert sizes[1] <= sizes[0] + 512
    file.seek(0)
    again = torch.load(file, weights_only=False)
    x = torch.randn(2, 6)
    assert torch.equal(again(x), loaded()(x))
    assert origins_of(again) == {}


def test_a_state_dict_holds_tensors_only():
    assert set(loaded().state_dict()) == {"0.weight", "2.weight"}


def test_origins_are_replaced_and_those_of_unknown_names_left_out():
    model = loaded()
    assert set(origins_of(model)) == {"0.weight", "2.weight"}
    set_origins(model, {"2.weight": packed(6, 8), "9.weight": packed()})
    assert set(origins_of(model)) == {"2.weight"}
    set_origins(model, {})
    assert origins_of(model) == {}


def test_a_layer_used_twice_has_its_origin_under_both_names():
    layer = loaded()[0]
    assert set(origins_of(nn.ModuleList([layer, layer]))) == {"0.weight", "1.weight"}
