import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tersify.lab import network, resolve_target
from tersify.units import UnitGroup, find_units, moving_rules
from unit_nets import NETS, Concat, Grouped, Mobile, SelfAttention, make


def groups(model: nn.Module, example: Tensor) -> dict[str, UnitGroup]:
    return {group.name: group for group in find_units(model, example)}


def names(members: tuple) -> list[str]:
    return [member.name for member in members]


def test_a_filter_owns_its_row_its_norm_and_the_columns_that_read_it() -> None:
    group = groups(*make("resnet18"))["layer1.0.conv1"]
    assert (group.kind, group.size, group.coupled) == ("filter", 8, False)
    assert names(group.producers) == ["layer1.0.conv1.weight"]
    norm = ("weight", "bias", "running_mean", "running_var")
    assert names(group.followers) == [f"layer1.0.bn1.{part}" for part in norm]
    assert [(m.name, m.dim) for m in group.consumers] == [("layer1.0.conv2.weight", 1)]
    assert [(c.module, c.dim) for c in group.carriers] == [("layer1.0.bn1", 1)]


def test_units_that_meet_in_an_addition_are_one_group() -> None:
    group = groups(*make("resnet18"))["layer2.0.conv2"]
    assert group.coupled
    makers = [
        "layer2.0.conv2.weight",
        "layer2.0.downsample.0.weight",
        "layer2.1.conv2.weight",
    ]
    assert names(group.producers) == makers
    assert [c.module for c in group.carriers] == [
        "layer2.0.bn2",
        "layer2.0.downsample.1",
        "layer2.1.bn2",
    ]


def test_concatenated_branches_are_groups_of_their_own_with_their_place_in_the_next_layer() -> (
    None
):
    found = groups(Concat(), torch.rand(1, 3, 8, 8))
    assert list(found) == ["left", "right"]
    right = {m.name: m for m in found["right"].members}
    assert right["norm.weight"].unit.tolist() == [-1] * 5 + [0, 1, 2, 3]
    assert (
        right["head.weight"].unit.tolist()
        == [-1] * 20 + [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    )


def test_a_depthwise_filter_and_a_gate_go_with_their_channel() -> None:
    found = groups(Mobile(), torch.rand(1, 3, 8, 8))
    assert names(found["widen"].producers) == ["widen.weight", "excite.weight"]
    assert "deep.weight" in names(found["widen"].followers)
    assert names(found["stem"].producers) == ["stem.weight", "narrow.weight"]


def test_the_same_place_of_every_group_goes_together() -> None:
    found = groups(Grouped(), torch.rand(1, 3, 8, 8))
    assert found["first"].size == 4
    assert found["first"].producers[0].unit.tolist() == [0, 1, 2, 3] * 2
    assert found["grouped"].size == 6
    assert [(m.name, m.dim) for m in found["up"].producers] == [("up.weight", 1)]


@pytest.mark.parametrize(
    "activation",
    [
        nn.CELU,
        nn.ELU,
        nn.GELU,
        nn.Hardshrink,
        nn.Hardsigmoid,
        nn.Hardswish,
        nn.Hardtanh,
        nn.LeakyReLU,
        nn.LogSigmoid,
        nn.Mish,
        nn.ReLU,
        nn.ReLU6,
        nn.SELU,
        nn.Sigmoid,
        nn.SiLU,
        nn.Softplus,
        nn.Softshrink,
        nn.Tanh,
    ],
)
def test_an_activation_lets_units_pass_where_torch_does_not_tag_it_as_pointwise(
    activation, monkeypatch
) -> None:
    monkeypatch.setattr(moving_rules, "pointwise", None)
    model = nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 3))
    assert groups(model, torch.rand(1, 4))["0"].size == 6


def test_an_attention_head_is_a_unit_and_a_layer_norm_holds_the_stream() -> None:
    found = groups(SelfAttention(), torch.rand(1, 5, 12))
    assert {(g.name, g.kind, g.size) for g in found.values()} == {
        ("query", "head", 3),
        ("up", "neuron", 20),
    }
    assert names(found["query"].producers) == [
        "query.weight",
        "key.weight",
        "value.weight",
    ]
    assert names(found["query"].consumers) == ["out.weight"]


def test_a_packed_attention_weight_has_three_rows_of_heads() -> None:
    group = groups(*make("encoder"))["1.self_attn"]
    assert (group.kind, group.size) == ("head", 4)
    [rows] = group.producers
    assert rows.name == "1.self_attn.in_proj_weight"
    assert rows.unit.tolist() == [head for head in range(4) for _ in range(4)] * 3


def test_a_real_encoder_has_twelve_heads_and_1536_neurons_a_layer(minilm: Path) -> None:
    found = find_units(
        resolve_target(f"hf:{minilm}").eval(), torch.randint(1, 99, (1, 7))
    )
    assert [(g.kind, g.size) for g in found[:12]] == [
        ("head", 12),
        ("neuron", 1536),
    ] * 6


@pytest.mark.parametrize("name", NETS)
def test_silencing_parameters_is_masking_the_carriers(name: str) -> None:
    model, x = make(name)
    silenced, handles = copy.deepcopy(model), []
    for group in find_units(model, x):
        if not group.carriers:
            continue
        dead = torch.rand(group.size) < 0.4
        group.silence_(silenced, dead)
        for carrier in group.carriers:

            def mask(
                module: nn.Module, args: object, out: Tensor, carrier=carrier, dead=dead
            ) -> Tensor:
                shape = [1] * out.dim()
                shape[carrier.dim] = -1
                return out * carrier.spread((~dead).float()).reshape(shape)

            handles.append(
                model.get_submodule(carrier.module).register_forward_hook(mask)
            )
    with torch.no_grad():
        assert handles
        assert torch.allclose(model(x), silenced(x), rtol=1e-5, atol=1e-6)


def test_what_leaves_the_model_is_no_unit() -> None:
    assert groups(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.rand(1, 4)
    ).keys() == {"0"}


class Odd(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.how == "mixed":
            x = x.cumsum(1)
        elif self.how == "written size":
            x = x.view(-1, 6)
        elif self.how == "slice":
            x = torch.cat([x[:, :3], x[:, 3:]], 1)
        elif self.how == "normed":
            x = nn.functional.layer_norm(x, (6,))
        elif self.how == "stored":
            x = x + torch.ones(2, 6)
        elif self.how == "read":
            x = x * self.first.weight.sum(1)
        return self.last(x)


@pytest.mark.parametrize("how", ["mixed", "slice", "normed", "stored", "read"])
def test_an_operation_that_cannot_lose_a_unit_holds_all_of_them(how: str) -> None:
    assert find_units(Odd(how), torch.rand(2, 4)) == []


def test_a_size_written_into_the_program_ties_all_units_into_one() -> None:
    assert [g.size for g in find_units(Odd("written size"), torch.rand(2, 4))] == [1]


def test_the_model_itself_stays_as_it_was() -> None:
    model, x = make("encoder")
    model.train()
    before = copy.deepcopy(model.state_dict())
    find_units(model, x)
    assert model.training
    assert isinstance(model[1].self_attn, nn.MultiheadAttention)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_a_model_that_branches_on_values_is_refused_by_name() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(
        ValueError,
        match=r"Branching cannot be traced with this example .*without branches on values",
    ):
        find_units(Branching(), torch.rand(2))


def test_an_example_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be traced with this example"):
        find_units(network("digits-cnn"), torch.rand(1, 3, 8, 8))


def test_a_parametrized_layer_is_named() -> None:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 2)
    )
    with pytest.raises(
        ValueError, match="'0' is parametrized; find units before attaching a session"
    ):
        find_units(model, torch.rand(1, 3))


def test_a_mask_of_the_wrong_size_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    [group] = find_units(model, torch.rand(1, 4))
    with pytest.raises(
        ValueError, match=r"group '0' has 6 units, got a mask of shape \(5,\)"
    ):
        group.silence_(model, torch.zeros(5, dtype=torch.bool))
