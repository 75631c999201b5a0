"""A scale for every group of columns of a row: better than one a row, chosen on the
compensated weights, stored without loss, run right.
"""

from __future__ import annotations

import pytest
import torch
from small_language_model import SmallModel, calibration, loss_of, trained

import tersify
from tersify.codec import TerseFileError
from tersify.compensated import Compensation, compensate_
from tersify.compensated.groups import Grouped
from tersify.compensated.tables import Table, Ternary
from tersify.compensated.triangular import compensate, spread_of
from tersify.tensor.blocks import joined


def problem(seed=0):
    """Weights whose columns have sizes of their own, and the U of their inputs."""
    g = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-1, 1, 4).repeat_interleave(16)
    weight = torch.randn(24, 64, generator=g) * sizes
    x = torch.randn(400, 64, generator=g) @ torch.randn(64, 64, generator=g)
    return weight, spread_of(x.T @ x / 400, 0.01), x


def codes_for(kind, rows, groups):
    fisher = torch.ones(rows * groups)
    return Ternary() if kind == "ternary" else Table(3, fisher)


@pytest.mark.parametrize("kind", ["ternary", "table"])
def test_groups_do_less_damage_than_a_scale_a_row(kind):
    weight, upper, x = problem()
    one = compensate(weight, upper, codes_for(kind, 24, 1))
    grouped = Grouped(codes_for(kind, 24, 4), 16)
    many = compensate(weight, upper, grouped, block_columns=16)
    damage = [float(((made - weight) @ x.T).square().mean()) for made in (one, many)]
    assert damage[1] < 0.9 * damage[0]
    assert torch.equal(grouped.packed().to_dense().flatten(1), many)


def test_the_scale_of_a_group_is_chosen_on_what_the_columns_before_left():
    weight, upper, _ = problem()
    seen = []

    class Watched(Ternary):
        def fit_rows(self, given, matters):
            seen.append(given.clone())
            super().fit_rows(given, matters)

    compensate(weight, upper, Grouped(Watched(), 16), block_columns=16)
    assert len(seen) == 5  # all groups at the start, then each as it begins
    assert torch.equal(seen[1], weight[:, :16])
    assert not torch.equal(seen[2], weight[:, 16:32])


GROUPS = [
    {"code": "ternary", "groups": 16},
    {"code": "table", "bits": 3.0, "groups": 8},
]


@pytest.mark.parametrize("settings", GROUPS)
@pytest.mark.parametrize("steps", [0, 3])
def test_the_file_of_groups_gives_back_the_network(settings, steps, tmp_path):
    model = trained()
    packed = compensate_(
        model,
        Compensation(**settings, tune_steps=steps),
        calibration=calibration(16),
    )
    assert packed["blocks.0.up.weight"].scale.shape == (96, 32 // settings["groups"], 1)
    tersify.save(packed, tmp_path / "net.terse")
    loaded = tersify.load(tmp_path / "net.terse", into=SmallModel())
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    assert loaded.head.weight is loaded.embed.weight
    again = tersify.open(tmp_path / "net.terse")
    for name, tensor in packed.compressed().items():
        assert again[name].equal(tensor), name
        assert torch.equal(joined(packed)[name], model.get_parameter(name)), name


@pytest.mark.parametrize("settings", GROUPS)
def test_a_network_of_groups_loses_less(settings):
    losses = []
    for groups in (0, settings["groups"]):
        model = trained()
        compensate_(
            model,
            Compensation(**{**settings, "groups": groups}),
            calibration=calibration(64),
        )
        losses.append(loss_of(model))
    assert losses[1] < losses[0]


def test_a_matrix_whose_columns_are_no_multiple_has_a_scale_a_row(tmp_path):
    model = trained()
    packed = compensate_(
        model, Compensation(code="ternary", groups=48), calibration=calibration(16)
    )
    assert packed["blocks.0.up.weight"].scale.shape == (96, 1)
    assert packed["blocks.0.down.weight"].scale.shape == (32, 2, 1)
    assert packed.metadata["blocks"] == ["blocks.0.down.weight", "blocks.1.down.weight"]


def test_a_run_of_groups_that_was_stopped_goes_on(tmp_path):
    settings = Compensation(code="ternary", groups=16)
    whole, model = trained(), trained()
    compensate_(whole, settings, calibration=calibration(16))

    def tell(what: str, done: int, all_of_it: int) -> None:
        if (what, done) == ("matrices", 4):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        compensate_(
            model, settings, calibration=calibration(16), folder=tmp_path, tell=tell
        )
    compensate_(model, settings, calibration=calibration(16), folder=tmp_path)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"groups": 16}, "groups is for code ternary and for tables without"),
        ({"code": "prune", "groups": 16}, "groups is for code ternary"),
        (
            {"code": "table", "bits": 4.0, "coded_bits": 2.0, "groups": 16},
            "groups is for code ternary",
        ),
        ({"code": "ternary", "groups": -1}, "groups must be a whole number"),
        ({"code": "ternary", "groups": 1.5}, "groups must be a whole number"),
    ],
)
def test_settings_of_groups_are_checked(settings, said):
    with pytest.raises(ValueError, match=said):
        Compensation(**settings)


def test_metadata_that_name_other_things_blocks_are_left_alone(tmp_path):
    net = torch.nn.Linear(3, 2)
    for told in (3, ["weight", "nowhere", 7], {"weight": 1}, [["weight"]]):
        packed = tersify.pack(net)
        packed.metadata["blocks"] = told
        tersify.save(packed, tmp_path / "net.terse")
        loaded = tersify.load(tmp_path / "net.terse", into=torch.nn.Linear(3, 2))
        assert torch.equal(loaded.weight, net.weight)


@pytest.mark.parametrize("shape", [(5,), (1000, 1, 1, 1), (4, 2, 8), (4, 3, 1)])
def test_a_file_whose_blocks_have_something_else_added_is_refused(shape, tmp_path):
    codes = torch.zeros(4, 2, 8, dtype=torch.uint8)
    blocks = tersify.CompressedTensor(
        shape=codes.shape, codes=codes, codebook=torch.tensor([0.0, 1.0])
    )
    model = tersify.CompressedModel(
        {"weight": blocks, "weight.added": torch.zeros(shape)},
        metadata={"blocks": ["weight"]},
    )
    tersify.save(model, tmp_path / "net.terse")
    net = torch.nn.Linear(16, 4, bias=False)
    with pytest.raises(TerseFileError, match=r"net.terse: 'weight.added' has shape"):
        tersify.load(tmp_path / "net.terse", into=net)


def test_blocks_with_something_added_load_into_a_plain_module(tmp_path):
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 2, (4, 2, 8), dtype=torch.uint8, generator=g)
    blocks = tersify.CompressedTensor(
        shape=codes.shape, codes=codes, codebook=torch.tensor([0.0, 1.0])
    )
    added = torch.randn(4, 2, 1, generator=g)
    model = tersify.CompressedModel(
        {"weight": blocks, "weight.added": added}, metadata={"blocks": ["weight"]}
    )
    tersify.save(model, tmp_path / "net.terse")
    net = tersify.load(tmp_path / "net.terse", into=torch.nn.Linear(16, 4, bias=False))
    assert torch.equal(net.weight, (blocks.to_dense() + added).flatten(1))
