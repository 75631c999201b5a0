"""Widths for layers: measured one at a time, chosen by the knapsack."""

import itertools
import sys

import pytest
import torch

import tersify
from tersify.cli import main
from tersify.lab import network
from tersify.lab.allocate import (
    Budget,
    Choice,
    Plan,
    candidates,
    knapsack,
    measure,
    smallest_within,
    trade_off,
)
from tersify.methods import Lookup
from tersify.recipe import Recipe

TABLE = {
    "a": [
        Choice(Lookup(n=2), 25, 0.9),
        Choice(Lookup(n=4), 50, 0.2),
        Choice(Lookup(n=6), 75, 0.05),
    ],
    "b": [
        Choice(Lookup(n=2), 250, 0.3),
        Choice(Lookup(n=4), 500, 0.02),
        Choice(Lookup(n=6), 750, 0.01),
    ],
    "c": [
        Choice(Lookup(n=2), 10, 0.5),
        Choice(Lookup(n=4), 20, 0.4),
        Choice(Lookup(n=6), 30, 0.3),
    ],
}


@pytest.mark.parametrize("limit", [285, 300, 420, 555, 700, 2000])
def test_the_knapsack_finds_the_least_damage_of_all_plans(limit):
    plans = [
        Plan(dict(zip(TABLE, picks, strict=True)))
        for picks in itertools.product(*TABLE.values())
    ]
    best = min(plan.damage for plan in plans if plan.size_bytes <= limit)
    found = knapsack(TABLE, limit)
    assert found.size_bytes <= limit
    assert found.damage == pytest.approx(best)


def test_a_budget_below_the_smallest_choices_is_told():
    with pytest.raises(ValueError, match="take 285 bytes, the budget is 200"):
        knapsack(TABLE, 200)
    with pytest.raises(ValueError, match="one of them"):
        Budget()


def test_the_curve_falls_as_bytes_rise():
    plans = trade_off(TABLE)
    assert [p.size_bytes for p in plans] == sorted({p.size_bytes for p in plans})
    assert all(a.damage >= b.damage for a, b in itertools.pairwise(plans))


def test_the_smallest_plan_that_is_good_enough_is_found():
    plans = trade_off(TABLE)
    quality = {id(p): 90 - 10 * p.damage for p in plans}
    floor = quality[id(plans[2])]
    assert smallest_within(plans, lambda p: quality[id(p)], floor)[0] is plans[2]
    with pytest.raises(ValueError, match="was asked for"):
        smallest_within(plans, lambda p: quality[id(p)], 100.0)


def test_measured_damage_shrinks_with_bits_and_leaves_the_model_alone():
    torch.manual_seed(0)
    model = network("digits-cnn", width=0.25).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    table = measure(model, [torch.randn(32, 1, 8, 8)], candidates()[:3])
    for choices in table.values():
        damages = [c.damage for c in choices]
        assert damages[0] > damages[1] > damages[2]
        assert all(c.size_bytes > 0 for c in choices)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    plan = knapsack(table, sum(c[2].size_bytes for c in table.values()))
    recipe = Recipe.from_toml(plan.recipe().to_toml())
    packed = tersify.compress_(model, recipe)
    assert set(packed.compressed()) == set(table)


def test_the_command_writes_a_recipe_that_fits_the_budget(tmp_path, capsys):
    torch.manual_seed(0)
    model = network("digits-cnn", width=0.25)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    arguments = [
        "--weights",
        str(tmp_path / "weights.pt"),
        "--data",
        "digits",
        "--out",
        str(tmp_path / "mixed.toml"),
        "--option",
        "width=0.25",
    ]
    file = tmp_path / "net.terse"
    assert (
        main(
            [
                "allocate",
                "digits-cnn",
                *arguments,
                "--budget",
                "2500",
                "--images",
                "50",
                "--save",
                str(file),
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "bytes of codes and tables" in said
    assert "% before" in said
    assert main(["eval", str(file), "--data", "digits"]) == 0
    assert tersify.open(file).metadata["input"] == [1, 8, 8]
    capsys.readouterr()
    assert Recipe.load(tmp_path / "mixed.toml").rules
    assert main(["allocate", "digits-cnn", *arguments, "--images", "50"]) == 2
    assert "one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--images", "0"], "'--images'"),
        (
            ["--images", "100000"],
            "--images 100000 leaves none of the 1352 training images of digits",
        ),
        (["--budget", "-1"], "a budget must not be negative, got -1"),
        (["--drop", "1"], "give --budget BYTES or --drop POINTS, one of them"),
        (
            ["--save", "THERE"],
            "is there already; give another --save, or add --overwrite",
        ),
        (
            ["--out", "THERE"],
            "is there already; give another --out, or add --overwrite",
        ),
        (
            ["--save", "NEW", "--out", "NEW"],
            "--save is the file of --out; give it another name",
        ),
        (["--out", "THERE/x.toml"], "File exists; check the path"),
        (
            ["--plot", "curve.html"],
            "plotting needs plotly; pip install 'tersify[plots]'",
        ),
        (["--option", "in_channels=3"], "does not take the 1×8×8 images of 'digits'"),
    ],
)
def test_the_command_explains_a_mistake_before_it_measures_anything(
    flags, wanted, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    options = {"width": 0.25} | ({"in_channels": 3} if "in_channels=3" in flags else {})
    torch.save(network("digits-cnn", **options).state_dict(), tmp_path / "weights.pt")
    (tmp_path / "there").write_text("precious")
    words = [
        word.replace("THERE", str(tmp_path / "there")).replace(
            "NEW", str(tmp_path / "new")
        )
        for word in flags
    ]
    given = [
        "--weights",
        str(tmp_path / "weights.pt"),
        "--data",
        "digits",
        "--out",
        str(tmp_path / "mixed.toml"),
        "--budget",
        "2500",
        "--option",
        "width=0.25",
    ]
    assert main(["allocate", "digits-cnn", *given, *words]) == 2
    captured = capsys.readouterr()
    assert wanted in captured.err
    assert captured.out == ""
    assert (tmp_path / "there").read_text() == "precious"
