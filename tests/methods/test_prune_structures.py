"""Each structure's own claim: what becomes zero becomes zero together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pruning import begin, pruned_at_once, zero_fraction
from torch import nn

from method_zoo import make


def live_slices(weight, dim):
    return weight.detach().movedim(dim, 0).flatten(1).any(1)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    nm=st.sampled_from([(1, 2), (2, 4), (1, 4), (4, 4), (3, 5), (2, 8)]),
)
def test_no_m_weights_along_the_input_hold_more_than_n(shape, nm):
    n, m = nm
    layer = nn.Linear(1, 1)
    layer.weight = nn.Parameter(torch.randn(shape))
    pruned_at_once(layer, structure=f"{n}:{m}")
    along_input = layer.weight.detach().movedim(1, -1)
    for start in range(0, along_input.shape[-1], m):
        group = along_input[..., start : start + m]
        assert ((group != 0).sum(-1) <= n).all()
        if group.shape[-1] == m:
            assert ((group != 0).sum(-1) == n).all()


def test_two_of_four_keeps_the_two_largest():
    layer = nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -9.0, 3.0, 2.0, 0.1, 0.2, -0.3, 0.4]]))
    pruned_at_once(layer, structure="2:4")
    assert layer.weight.tolist()[0] == pytest.approx([0, -9, 3, 0, 0, 0, -0.3, 0.4])


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(2, 20),
    columns=st.integers(2, 20),
    r=st.integers(1, 5),
    c=st.integers(1, 5),
)
def test_blocks_go_whole_also_at_ragged_edges(rows, columns, r, c):
    blocks = -(-rows // r) * -(-columns // c)
    layer = nn.Linear(columns, rows, bias=False)
    pruned_at_once(
        layer, structure=f"block-{r}x{c}", sparsity=0.5 if blocks > 1 else 0.0
    )
    gone = 0
    for i in range(0, rows, r):
        for j in range(0, columns, c):
            tile = layer.weight[i : i + r, j : j + c] == 0
            assert tile.all() or not tile.any()
            gone += bool(tile.all())
    assert gone == round(0.5 * blocks) or blocks == 1


def test_kernels_of_a_convolution_go_whole():
    layer = nn.Conv2d(4, 6, 3)
    pruned_at_once(layer, structure="kernel", sparsity=0.5)
    zeros = (layer.weight == 0).flatten(2)
    assert (zeros.all(2) == zeros.any(2)).all()
    assert zeros.all(2).sum() == 12


def test_a_filter_takes_its_bias_and_the_batch_norm_behind_it_along():
    model, x = make("conv2d")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    session = begin(model, structure="filter", sparsity=0.5)
    session.advance_to_end()
    live = live_slices(model[0].weight, 0)
    assert live.sum() == 3
    for tensor in (model[0].bias, model[1].weight, model[1].bias):
        assert torch.equal(tensor != 0, live)
    assert (model.eval()[:3](x)[:, ~live] == 0).all()
    assert (model[5].weight != 0).all()  # a linear layer has no filters
    names = set(session.pack().compressed())
    assert {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"} <= names
    session.bake_()
    assert torch.equal(model[1].bias != 0, live)


def test_filters_go_by_their_l1_norm():
    layer = nn.Conv2d(2, 4, 3)
    with torch.no_grad():
        layer.weight.copy_(
            layer.weight.sign() * torch.tensor([0.3, 0.1, 0.4, 0.2]).view(4, 1, 1, 1)
        )
    pruned_at_once(layer, structure="filter", count=2)
    assert live_slices(layer.weight, 0).tolist() == [True, False, True, False]


def test_neurons_are_rows_of_linear_layers_and_channels_columns_of_convolutions():
    model, _ = make("conv2d")
    session = begin(model, structure="neuron", count=1)
    session.advance_to_end()
    assert (
        live_slices(model[5].weight, 0).sum(),
        live_slices(model[3].weight, 0).sum(),
    ) == (2, 4)
    assert torch.equal(model[5].bias != 0, live_slices(model[5].weight, 0))
    model, _ = make("conv2d")
    session = begin(model, weights="3.weight", structure="channel", count=2)
    session.advance_to_end()
    assert live_slices(model[3].weight, 1).sum() == 4
    assert (model[3].bias != 0).all()


class BertLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Module()
        self.attention.self = nn.Module()
        for name in ("query", "key", "value"):
            setattr(self.attention.self, name, nn.Linear(12, 12))
        self.attention.self.num_attention_heads = 3
        self.attention.output = nn.Module()
        self.attention.output.dense = nn.Linear(12, 12)


@pytest.mark.parametrize("heads", [3])
def test_a_head_goes_from_query_key_value_and_the_columns_that_read_it(heads):
    model = BertLike()
    session = begin(model, weights="*query.weight", structure="head", count=1)
    session.advance_to_end()
    own = model.attention.self
    live = live_slices(own.query.weight, 0)
    assert live.view(heads, 4).sum(1).tolist().count(0) == 1
    for layer in (own.query, own.key, own.value):
        assert torch.equal(live_slices(layer.weight, 0), live)
        assert torch.equal(layer.bias != 0, live)
    assert torch.equal(live_slices(model.attention.output.dense.weight, 1), live)


def test_a_head_of_torchs_attention_goes_from_all_three_projections():
    model = nn.MultiheadAttention(12, 3)
    nn.init.normal_(model.in_proj_bias)
    session = begin(
        model, weights=["in_proj_weight", "out_proj.weight"], structure="head", count=2
    )
    session.advance_to_end()
    live = live_slices(model.in_proj_weight, 0).view(3, 3, 4)
    assert live.all(2).sum(1).tolist() == [1, 1, 1]
    assert torch.equal(live[0], live[2])
    assert torch.equal(live_slices(model.out_proj.weight, 1), live[0].flatten())
    assert torch.equal(model.in_proj_bias != 0, live.flatten())


def test_filters_that_meet_in_an_addition_go_together():
    from tersify import Recipe, compress_
    from tersify.lab import network

    model = network("resnet18", width=0.125, classes=5).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias)
    compress_(model, Recipe.load("filter-50"), example=torch.randn(1, 3, 64, 64))
    stem = live_slices(model.conv1.weight, 0)
    assert stem.float().mean() == 0.5
    for block in model.layer1:
        assert torch.equal(live_slices(block.conv2.weight, 0), stem)
        assert torch.equal(block.bn2.bias != 0, stem)
        # inside a block it is free
        assert not torch.equal(live_slices(block.conv1.weight, 0), stem)
    assert (model.fc.weight != 0).all()


def test_heads_found_by_their_calculation_are_those_found_by_their_names():
    from tersify.lab import network

    options = {
        "vocabulary": 16,
        "hidden": 12,
        "layers": 1,
        "heads": 3,
        "intermediate": 8,
        "positions": 8,
    }
    masks = []
    for example in (None, torch.randint(1, 16, (1, 8))):
        torch.manual_seed(1)
        model = network("minilm", **options)
        session = begin(
            model, weights="*attention*", structure="head", count=1, example=example
        )
        session.advance_to_end()
        masks.append(
            {
                name: t.codes
                for name, t in session.pack().compressed().items()
                if "self" in name
            }
        )
    assert masks[0].keys() == masks[1].keys()
    assert all(torch.equal(mask, masks[1][name]) for name, mask in masks[0].items())


def test_a_bias_named_by_a_rule_is_pruned_by_an_absolute_count():
    model = nn.Linear(4, 10)
    pruned_at_once(model, weights="bias", count=7)
    assert (model.bias == 0).sum() == 7
    assert zero_fraction(model.weight) == 0


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            nn.Conv2d(2, 4, 3),
            {"structure": "filter", "count": 4},
            "'weight' has 4 units .filter. and would lose all",
        ),
        (
            nn.Conv2d(2, 4, 3),
            {"structure": "filter", "sparsity": 0.9},
            "would lose all of them",
        ),
        (
            nn.Linear(4, 4),
            {"structure": "filter"},
            "none of the weights 'weight' has a filter that can go; filters are the outputs of convolutions",
        ),
        (
            nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3)),
            {"structure": "filter", "example": torch.randn(1, 2, 8, 8)},
            r"has a filter that can go; GroupNorm \('1'\) reads several channels together",
        ),
        (
            nn.Conv2d(2, 4, 3),
            {"structure": "filter", "example": torch.randn(1, 2, 8, 8)},
            "has a filter that can go; what reads their outputs needs all of them",
        ),
        (
            nn.ConvTranspose2d(4, 6, 3, groups=2),
            {"structure": "filter", "count": 1},
            "none of the weights .* has a filter",
        ),
        (nn.Linear(4, 4), {"structure": "kernel"}, "has no kernel"),
        (
            nn.Linear(4, 4),
            {"structure": "head"},
            "none of the weights 'weight' has a head",
        ),
        (
            nn.Linear(4, 4),
            {"structure": "row", "scope": "global", "count": 4},
            "3 can go at most",
        ),
    ],
)
def test_a_structure_the_network_cannot_give_is_refused_and_leaves_the_network_alone(
    model, options, message
):
    before = list(model.state_dict())
    with pytest.raises(ValueError, match=message):
        begin(model, **options)
    assert list(model.state_dict()) == before


def test_a_bias_of_another_rule_cannot_go_with_the_filter_too():
    from tersify import Recipe, Rule, attach
    from tersify.methods import Prune

    rules = [
        Rule(weights="bias", methods=[Prune(sparsity=0.5)]),
        Rule(methods=[Prune(structure="row", count=1)]),
    ]
    with pytest.raises(
        ValueError,
        match=r"'bias' changes together with weights of rule '\*' and belongs to another",
    ):
        attach(nn.Linear(4, 4), Recipe(rules=rules), steps=1)


class NormsRegisteredLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3)
        self.b1, self.b2 = nn.BatchNorm2d(6), nn.BatchNorm2d(6)

    def forward(self, x):
        return self.b2(self.c2(self.b1(self.c1(x)).relu()))


class PreActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.c2, self.b2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)

    def forward(self, x):
        return x + self.c2(self.b2(self.c1(self.b1(x).relu())).relu())


class Untraceable(NormsRegisteredLast):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


@pytest.mark.parametrize(
    ("model", "behind", "alone"),
    [
        (NormsRegisteredLast(), {"c1": "b1", "c2": "b2"}, []),
        (PreActivation(), {"c1": "b2"}, ["b1"]),
        (Untraceable(), {}, ["b1", "b2"]),
    ],
)
def test_a_filter_takes_the_norm_that_the_calculation_puts_behind_it(
    model, behind, alone
):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    pruned_at_once(
        model, weights=["c1.weight", "c2.weight"], structure="filter", count=2
    )
    for name in ("c1", "c2"):
        layer = getattr(model, name)
        live = live_slices(layer.weight, 0)
        assert live.sum() == 4
        assert torch.equal(layer.bias != 0, live)
        if norm := getattr(model, behind.get(name, ""), None):
            assert torch.equal(norm.weight != 0, live)
            assert torch.equal(norm.bias != 0, live)
    for name in alone:
        assert getattr(model, name).weight.all()


def test_a_query_head_goes_without_the_keys_and_values_that_several_share():
    model = nn.Module()
    model.num_heads = 4
    model.q_proj, model.o_proj = nn.Linear(16, 16), nn.Linear(16, 16)
    model.k_proj, model.v_proj = nn.Linear(16, 8), nn.Linear(16, 8)
    pruned_at_once(model, weights="q_proj.weight", structure="head", count=1)
    live = live_slices(model.q_proj.weight, 0)
    assert live.sum() == 12
    assert torch.equal(live_slices(model.o_proj.weight, 1), live)
    assert model.k_proj.weight.all()
    assert model.v_proj.weight.all()
